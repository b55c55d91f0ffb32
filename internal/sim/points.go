package sim

import (
	"context"
	"reflect"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// point is a rewind point with all targets as they were at it.
type point struct {
	checkpoint.Point
	targets map[change.Name]*Store
}

// Copy copies all targets.
func (d *Database) Copy() map[change.Name]*Store {
	out := map[change.Name]*Store{}
	for name, st := range d.Targets {
		out[name] = st.Clone()
	}
	return out
}

// Point keeps a copy of everything. It implements sink.Rewinds.
func (s *Sink) Point(_ context.Context, label string) (checkpoint.Point, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fenced(); err != nil {
		return checkpoint.Point{}, err
	}
	if s.opening {
		return checkpoint.Point{}, fault.Corrupted("a point inside a batch")
	}
	if err := s.Faults.hit("point"); err != nil {
		return checkpoint.Point{}, err
	}
	if s.Mark.Phase == checkpoint.None {
		return checkpoint.Point{}, fault.Corrupted("a point without a mark")
	}
	s.numbers++
	p := point{Point: checkpoint.Point{Number: s.numbers, Mark: s.Mark, Label: label, Made: time.Now()}, targets: s.Copy()}
	p.Mark.Tables, p.Mark.Flows = slices.Clone(s.Mark.Tables), slices.Clone(s.Mark.Flows)
	s.points = append(s.points, p)
	if s.Pointed != nil {
		s.Pointed(p.Point)
	}
	return p.Point, s.Faults.after("point")
}

func (s *Sink) Points(context.Context) ([]checkpoint.Point, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []checkpoint.Point
	for _, p := range s.points {
		out = append(out, p.Point)
	}
	return out, s.Faults.hit("points")
}

func (s *Sink) DropPoints(_ context.Context, below int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fenced(); err != nil {
		return err
	}
	if err := s.Faults.hit("drop points"); err != nil {
		return err
	}
	s.points = slices.DeleteFunc(s.points, func(p point) bool { return p.Number < below })
	return nil
}

// at is the point of a number, or the first behind it.
func (s *Sink) at(number int64) *point {
	for i := range s.points {
		if s.points[i].Number >= number {
			return &s.points[i]
		}
	}
	return nil
}

func (s *Sink) Undo(_ context.Context, to int64) (out []sink.Undo, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at(to)
	if p == nil {
		return nil, fault.Corrupted("there is no point %d", to)
	}
	for name, now := range s.Targets {
		u := sink.Undo{Target: name}
		was := p.targets[name]
		if s.filled[name] >= to || was == nil {
			u.Barrier = "it was copied since"
		} else {
			u.Rows = different(was.Rows, now.Rows) + different(was.History, now.History)
		}
		if u.Rows > 0 || u.Barrier != "" {
			out = append(out, u)
		}
	}
	return out, s.Faults.hit("undo")
}

// TakenSince finds none: this destination takes no files.
func (s *Sink) TakenSince(context.Context, int64) ([]change.File, error) { return nil, nil }

func different[V any](a, b map[string]V) (n int64) {
	for k := range a {
		if !reflect.DeepEqual(a[k], b[k]) {
			n++
		}
	}
	for k := range b {
		if _, there := a[k]; !there {
			n++
		}
	}
	return n
}

func (s *Sink) Rewind(_ context.Context, r sink.Rewind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fenced(); err != nil {
		return err
	}
	if err := s.Faults.hit("rewind"); err != nil {
		return err
	}
	p := s.at(r.To)
	if p == nil || p.Number != r.To || p.Gone {
		return fault.Corrupted("point %d is no choice", r.To)
	}
	for _, t := range r.Targets {
		if s.filled[t.Name] >= r.To || p.targets[t.Name] == nil {
			return fault.Refuse("leave it out", "target %s was copied since", t.Name)
		}
	}
	for _, t := range r.Targets {
		s.Targets[t.Name] = p.targets[t.Name].Clone()
	}
	for i := range s.points {
		s.points[i].Gone = s.points[i].Gone || s.points[i].Number > r.To
	}
	tables := s.Mark.Tables
	for _, t := range r.Mark.Tables {
		tables = put(tables, t)
	}
	m := r.Mark
	m.Tables, m.Epoch = tables, s.epoch
	s.Mark, s.durable = m, m.Position
	return s.Faults.after("rewind")
}

// Recall fills a target of this one pipeline with what another was.
func (s *Sink) Recall(_ context.Context, t *scd.Target, of sink.Past, done checkpoint.Table) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.at(of.Point)
	if p == nil || p.targets[of.Target.Name] == nil {
		return 0, fault.Corrupted("target %s is not part of point %d", of.Target.Name, of.Point)
	}
	st := p.targets[of.Target.Name].Clone()
	s.Targets[t.Name] = st
	s.Mark.Tables = put(s.Mark.Tables, done)
	return int64(len(st.Rows) + len(st.History)), nil
}
