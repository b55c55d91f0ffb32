package sinktest

import (
	"maps"
	"slices"
	"testing"
)

var randomPointTests = []test{
	{"random work, points and rewinds", nil, func(t *testing.T, h Harness) {
		rnd := random(t)
		m := beginTimes(t, h)
		k := newVariety(m)
		saved := map[int64]models{}
		k.point("first")
		saved[1] = k.save()
		for n := range fewer(h, 300) {
			switch c := rnd.IntN(30); {
			case c < 3:
				number := m.point("")
				saved[number] = k.save()
			case c < 5 && len(m.at) > 0:
				numbers := slices.Sorted(maps.Keys(m.at))
				to := numbers[rnd.IntN(len(numbers))]
				list := m.targets
				if rnd.IntN(2) == 0 {
					list = slices.Clone(list)
					rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
					list = list[:1+rnd.IntN(len(list))]
				}
				m.rewind(to, list...)
				k.restore(saved[to], list)
				for range rnd.IntN(2) {
					m.rewind(to, list...)
				}
			case c == 5 && len(m.at) > 3:
				below := slices.Sorted(maps.Keys(m.at))[rnd.IntN(3)]
				if err := m.rewinds().DropPoints(m.ctx, below); err != nil {
					t.Fatalf("step %d: DropPoints: %v", n, err)
				}
				for number := range m.at {
					if number < below {
						delete(m.at, number)
					}
				}
			case c == 6:
				m.reopen()
			default:
				k.batch(rnd)
			}
		}
		for _, to := range slices.Backward(slices.Sorted(maps.Keys(m.at))) {
			m.rewind(to)
		}
	}},
}

// models are what a variety knows of its ordered targets.
type models struct {
	rows     map[string]cells
	versions map[int][]version
}

func (k *variety) save() models {
	s := models{maps.Clone(k.model1.rows), map[int][]version{}}
	for key, list := range k.model2.versions {
		s.versions[key] = slices.Clone(list)
	}
	return s
}

func (k *variety) restore(s models, list []target) {
	for _, t := range list {
		switch t.Name {
		case k.one.Name:
			k.model1.rows = maps.Clone(s.rows)
		case k.two.Name:
			k.model2.versions = map[int][]version{}
			for key, versions := range s.versions {
				k.model2.versions[key] = slices.Clone(versions)
			}
		}
	}
}
