package mysql

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/scd"
	"tailrace/sink"
)

// rewinder does random work on targets of every kind of the ordered lane, and knows what
// they held at each point.
type rewinder struct {
	*bench
	rnd     *rand.Rand
	targets []*scd.Target
	at      map[int64]map[string][]string
	points  []checkpoint.Point
}

func newRewinder(t *testing.T, server *dbtest.MyServer, feeds bool) *rewinder {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TAILRACE_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("TAILRACE_TEST_SEED=%d", seed)
	r := &rewinder{bench: &bench{harness: newHarness(t, server), t: t}, rnd: rand.New(rand.NewPCG(seed, 1)), at: map[int64]map[string][]string{}}
	r.w = r.own(r.Open(t).(*Writer))
	id, text := scd.Column{Name: "id", Type: bigintType, Key: true}, scd.Column{Name: "v", Type: textType, Tracked: true}
	for _, k := range []struct {
		name string
		kind scd.Kind
		cols []scd.Column
	}{
		{"rows", scd.Type1, []scd.Column{id, text}},
		{"pairs", scd.Type1, []scd.Column{text, id, {Name: "k1", Type: textType, Key: true}, {Name: "was", Type: bigintType, Tracked: true}}},
		{"twins", scd.Type1, []scd.Column{id, text}},
		{"history", scd.Type2, []scd.Column{id, text}},
		{"keyless", scd.Type1, []scd.Column{{Name: "n", Type: bigintType}, text}},
	} {
		target := &scd.Target{Name: change.Name{Schema: r.schema, Table: k.name}, Kind: k.kind, Columns: k.cols, ChangeFeed: feeds}
		target.AppendOnly = len(target.Keys()) == 0
		if err := r.w.Create(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if k.name == "twins" {
			r.Exec(t, `CREATE UNIQUE INDEX "second" ON "twins" (v)`)
		}
		r.targets = append(r.targets, target)
	}
	if err := r.w.Save(t.Context(), checkpoint.Mark{Phase: checkpoint.Live, Slot: "s"}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rewinder) value(target *scd.Target, i, id int) change.Value {
	c := &target.Columns[i]
	text := fmt.Sprint(id)
	switch {
	case target.Name.Table == "twins" && !c.Key:
		text = fmt.Sprint((id + int(r.pos)) % 7) // they exchange values of the second index
	case !c.Key:
		if text = fmt.Sprint(r.rnd.IntN(3)); text == "2" && target.Name.Table != "keyless" {
			return change.Value{State: change.Null}
		}
	case c.Type.Kind == change.Text:
		text = []string{"a", "A", "a ", "ä", "'", "\\"}[id%6]
	}
	return change.Value{State: change.AsText, Data: []byte(text)}
}

// work is a batch of random rounds.
func (r *rewinder) work() {
	r.t.Helper()
	r.pos += 16
	pieces := 1 + r.rnd.IntN(2)
	for piece := range pieces {
		b := &sink.Batch{Position: change.LSN(r.pos), Resume: fmt.Sprint("r", r.pos), CommitTime: time.UnixMicro(1_700_000_000_000_000 + int64(r.pos)).UTC(), First: piece == 0, More: piece < pieces-1}
		for _, target := range r.targets {
			if r.rnd.IntN(3) == 0 {
				continue
			}
			var round scd.Round
			round.Truncate = r.rnd.IntN(12) == 0
			round.TruncateAt = 1_700_000_000_000_000 + int64(r.pos)
			ids := r.rnd.Perm(7)[:1+r.rnd.IntN(4)]
			if target.Name.Table == "twins" {
				round.Truncate = true
				ids = r.rnd.Perm(7)
			}
			slices.Sort(ids)
			var list []change.Row
			for _, id := range ids {
				row, key := change.Row{}, scd.Key{}
				for i := range target.Columns {
					v := r.value(target, i, id)
					row = row.Append(v)
					if target.Columns[i].Key {
						key = key.Append(v)
					}
				}
				gone := r.rnd.IntN(4) == 0
				switch {
				case target.Kind == scd.Type2:
					step := scd.Step{Key: key, N: 1, Lo: round.TruncateAt, Row: row}
					if gone {
						step.Row = nil
					}
					round.Steps = append(round.Steps, step)
				case gone && !target.AppendOnly:
					round.Deletes = append(round.Deletes, key)
				default:
					list = append(list, row)
				}
			}
			if target.AppendOnly {
				round.Inserts = list
			} else {
				round.Upserts = list
			}
			b.Targets = append(b.Targets, sink.TargetRounds{Target: target, Rounds: []scd.Round{round}})
		}
		if err := r.w.Apply(r.t.Context(), b); err != nil {
			r.t.Fatalf("Apply: %v", err)
		}
	}
}

func (r *rewinder) state() map[string][]string {
	r.t.Helper()
	out := map[string][]string{}
	for _, target := range r.targets {
		var lines []string
		for _, row := range r.Query(r.t, `SELECT * FROM "`+target.Name.Table+`"`) {
			var cells []string
			for _, c := range row {
				if c == nil {
					cells = append(cells, "NULL")
				} else {
					cells = append(cells, *c)
				}
			}
			lines = append(lines, strings.Join(cells, "|"))
		}
		slices.Sort(lines)
		out[target.Name.Table] = lines
	}
	return out
}

func (r *rewinder) point() {
	r.t.Helper()
	p, err := r.w.Point(r.t.Context(), "")
	if err != nil {
		r.t.Fatalf("Point: %v", err)
	}
	r.points = append(r.points, p)
	r.at[p.Number] = r.state()
}

func (r *rewinder) equals(what string, want map[string][]string) {
	r.t.Helper()
	got := r.state()
	for name := range want {
		if !slices.Equal(got[name], want[name]) {
			r.t.Fatalf("%s: %s holds\n  %s\nwant\n  %s", what, name, strings.Join(got[name], "\n  "), strings.Join(want[name], "\n  "))
		}
	}
}

// Whatever came after a point, a rewind brings everything back as it was, and what comes
// then is kept for it again.
func TestARewindBringsBackWhatWasThere(t *testing.T) {
	for _, server := range dbtest.MySQLs(t) {
		for _, feeds := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s feeds %v", server.Binaries.Full, feeds), func(t *testing.T) {
				r := newRewinder(t, server, feeds)
				for range 25 {
					switch n := r.rnd.IntN(12); {
					case n < 7:
						r.work()
					case n < 9:
						r.point()
					case n < 10:
						if err := r.w.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
						r.w = r.own(r.Open(t).(*Writer))
					case len(r.points) > 0:
						i := r.rnd.IntN(len(r.points))
						p := r.points[i]
						if err := r.w.Rewind(context.Background(), sink.Rewind{To: p.Number, Targets: r.targets, Mark: p.Mark}); err != nil {
							t.Fatalf("Rewind to %d: %v", p.Number, err)
						}
						r.equals(fmt.Sprintf("after a rewind to %d", p.Number), r.at[p.Number])
						r.points = r.points[:i+1]
						if left := r.Query(t, `SELECT COUNT(*) FROM _tailrace.undo WHERE dropped = 1`); *left[0][0] != "0" {
							t.Fatalf("%s tables of what was kept are left", *left[0][0])
						}
						m, err := r.w.State(t.Context())
						if err != nil || m.Position != p.Mark.Position || m.Resume != p.Mark.Resume || !m.CommitTime.Equal(p.Mark.CommitTime) {
							t.Fatalf("the mark is %+v, %v; want %+v", m, err, p.Mark)
						}
					}
				}
			})
		}
	}
}
