package sinktest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// storyTests tell what happens to targets of each kind, and rewind.
var storyTests = []test{
	{"type 1", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		m := beginTimes(t, h)
		tt, two := people(h, f), makeTarget(h, "pairs_"+f.String(), scd.Type1, "a text", "k int4 key", "b int8", "l text key")
		m.watch(tt, two)
		m.load(tt, f, false, cells{1, "a", 1}, cells{2, "b", 2}, cells{3, "c", 3}, cells{4, "d", nil}, cells{5, nil, 5}, cells{6, "f", 6})
		m.load(two, f, false, cells{"x", 1, 1, "x"}, cells{nil, 1, nil, "y"}, cells{"z", 2, 3, ""})
		var many, patches, gone []cells
		for i := range 1000 {
			many = append(many, cells{i + 100, strings.Repeat("x", i%50), i})
			patches = append(patches, cells{i + 100, absent{}, -i})
			if i%2 == 0 {
				gone = append(gone, cells{i + 100})
			}
		}
		m.tell(
			m.batches(tt, f, []round{{upserts: []cells{{1, "A", nil}}, deletes: []cells{{2}, {99}}, inserts: []cells{{7, "g", 7}}, patches: []cells{{3, absent{}, 33}}}}),
			m.batches(tt, f,
				[]round{{inserts: []cells{{2, "again", 2}}, deletes: []cells{{7}}, moves: []move{{cells{1}, cells{8, absent{}, 8}}, {cells{4}, cells{5, absent{}, absent{}}}, {cells{5}, cells{4, absent{}, 55}}}}},
				[]round{{upserts: []cells{{1, "A", nil}}}}), // as it was
			func() {
				for i := range 5 {
					m.apply(tt, f, round{upserts: []cells{{3, fmt.Sprint(i), i}}}, round{deletes: []cells{{3}}}, round{inserts: []cells{{3, nil, i}}})
				}
				m.apply(two, f, round{upserts: []cells{{"X", 1, 1, "x"}, {"new", 3, nil, "x"}}, deletes: []cells{{2, ""}}, moves: []move{{cells{1, "y"}, cells{absent{}, 1, 7, "z"}}}})
			},
			m.batches(tt, f, []round{{inserts: many}}, []round{{patches: patches}}),
			m.batches(tt, f, []round{{deletes: gone}}, []round{{truncate: true, inserts: []cells{{1, "one", 1}, {100, "hundred", nil}}}}, []round{{upserts: many[:300]}}),
			func() {
				m.pieces(tt, f, round{upserts: []cells{{1, "piece", 1}}}, round{upserts: []cells{{1, "piece", 2}}, deletes: []cells{{100}}}, round{inserts: []cells{{100, "p", 3}, {9, "p", 3}}})
				m.apply(two, f, round{truncate: true})
				m.pieces(two, f, round{inserts: []cells{{"x", 1, 1, "x"}}}, round{truncate: true, inserts: []cells{{"y", 1, 1, "x"}}}, round{patches: []cells{{absent{}, 1, 2, "x"}}})
			},
		)
	})},

	{"an ordered history", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		m := beginTimes(t, h)
		tt := staff(h, f)
		m.watch(tt)
		m.load(tt, f, false, cells{1, "a", "n", 1000}, cells{2, nil, "n", 1000}, cells{3, "", nil, 1000}, cells{4, "d", "n", 1000})
		is := func(key int, lo int64, name, note any) step {
			return step{key: cells{key}, lo: lo, row: cells{key, name, note}}
		}
		ends := func(key int, lo int64) step { return step{key: cells{key}, lo: lo} }
		var many []step
		for i := range 700 {
			many = append(many, is(100+i, 9000, fmt.Sprint(i), nil))
		}
		m.tell(
			m.batches(tt, f, []round{{steps: []step{is(1, 2000, "b", "n"), ends(2, 2000), is(3, 2000, "", "free"), is(5, 2000, "e", nil)}}}),
			m.batches(tt, f,
				[]round{{steps: []step{is(1, 3000, "c", "n"), is(2, 3000, "back", "n"), is(4, 3000, "d", "other"), ends(9, 3000)}}},
				[]round{{steps: []step{{key: cells{1}, n: 1, lo: 4000, loVoid: 4000, row: cells{1, "d", "n"}}, {key: cells{1}, n: 2, lo: 4001, loVoid: 4001}, {key: cells{1}, n: 3, lo: 4002, loVoid: 4002, row: cells{1, "e", "n"}}}}}),
			func() { // a version that a piece begins and another takes back, one that is reopened
				m.pieces(tt, f, round{steps: []step{is(1, 5000, "f", "n"), ends(4, 5000)}}, round{steps: []step{is(1, 5000, "e", "m"), is(4, 5000, "d", "other")}}, round{steps: []step{is(6, 5000, "g", nil)}})
				m.pieces(tt, f, round{steps: []step{is(6, 5500, "h", nil)}}, round{truncate: true, truncateAt: 5500}, round{steps: []step{is(2, 5500, "t", nil)}})
			},
			m.batches(tt, f, []round{{truncate: true, truncateAt: 6000, steps: []step{is(3, 6000, "x", nil), is(2, 6000, "t", "free")}}}, []round{{steps: []step{
				{key: cells{7}, lo: 7000, row: cells{7, absent{}, absent{}}, origin: cells{3}}, ends(3, 7000)}}}),
			m.batches(tt, f, []round{{steps: many}}, []round{{steps: []step{ends(150, 9500)}}}),
			m.batches(tt, f, []round{{truncate: true, truncateAt: 9999}}, []round{{steps: many[100:400]}}),
		)
	})},

	{"what has no key", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		m := beginTimes(t, h)
		tt := makeTarget(h, "log_"+f.String(), scd.Type1, "a text", "n int8")
		m.watch(tt)
		m.load(tt, f, false, cells{"a", 1}, cells{"a", 1}, cells{nil, nil}, cells{"", 0})
		many := make([]cells, 600)
		for i := range many {
			many[i] = cells{fmt.Sprint(i % 7), nil}
		}
		m.tell(
			m.batches(tt, f, []round{{inserts: []cells{{"b", nil}, {"a", 1}, {nil, nil}}}}),
			m.batches(tt, f, []round{{inserts: []cells{{"a", 1}, {"a", 1}, {"c\\\t\n", 3}}}}, []round{{inserts: []cells{{"a", 1}}}}),
			m.batches(tt, f, []round{{truncate: true, inserts: []cells{{"a", 1}, {"d", 4}}}}),
			m.batches(tt, f, []round{{inserts: many}}, []round{{truncate: true}}, []round{{inserts: many[:3]}, {truncate: true, inserts: []cells{{"a", 1}}}}),
			func() {
				m.pieces(tt, f, round{inserts: []cells{{"p", 1}, {"a", 1}}}, round{truncate: true}, round{inserts: []cells{{"p", 1}, {"q", nil}}})
			},
		)
	})},

	{"sequenced targets", nil, func(t *testing.T, h Harness) {
		for n, ld := range ladders {
			if n%2 == 1 { // integers, instants, two columns
				continue
			}
			t.Run(ld.name, func(t *testing.T) {
				partial := n == 2
				m := beginTimes(t, h)
				name := fmt.Sprintf("%s_%v", strings.ReplaceAll(ld.name, " ", "_"), partial)
				one := m.flow("one_"+name, scd.Type1, ld.types, partial, "id int4 key", "who text key", "n int8", "v text")
				two := m.flow("two_"+name, scd.Type2, ld.types, partial, "id int4 key", "who text key", "n int8", "v text")
				m.targets = append(m.targets, one.target, two.target)
				v := ld.values
				var chapters []func()
				for i, list := range []func(f *flow) []item{
					func(f *flow) []item {
						return []item{f.put(v[1], 1, "a", 1, "x"), f.put(v[2], 2, "b", nil, nil), f.put(v[0], 3, "", 3, ""), f.gone(v[2], 4, "x")}
					},
					func(f *flow) []item { // late, between, above; a delete that hides a late event
						return []item{f.put(v[0], 1, "a", 0, "early"), f.put(v[3], 1, "a", 2, "late"), f.put(v[1], 4, "x", 4, "hidden"), f.gone(v[4], 2, "b")}
					},
					func(f *flow) []item {
						return []item{f.put(v[2], 1, "a", 7, "between"), f.gone(v[1], 3, ""), f.put(v[3], 3, "", 33, "again"), f.put(v[3], 5, "new", 5, nil)}
					},
					func(f *flow) []item {
						if f.Kind == scd.Type1 {
							return []item{f.emptied(v[2]), f.put(v[4], 6, "t", 6, "t")}
						}
						return []item{f.gone(v[2], 1, "a"), f.put(v[4], 6, "t", 6, "t")}
					},
					func(f *flow) []item {
						return []item{f.put(v[4], 1, "a", 9, "end"), f.gone(v[4], 5, "new"), f.put(v[0], 7, "low", 7, nil)}
					},
				} {
					items := [][]item{list(one), list(two)}
					chapters = append(chapters, func() {
						one.anew()
						two.anew()
						if i%2 == 0 {
							m.write(one.gather(items[0]...), two.gather(items[1]...))
						} else {
							var pieces [][][]item
							for k := range items[0] {
								pieces = append(pieces, [][]item{items[0][k : k+1], items[1][k : k+1]})
							}
							m.sendPieces([]*flow{one, two}, pieces)
						}
					})
				}
				m.tell(chapters...)
				m.w.Close(m.ctx)
			})
		}
	}},

	{"what is remembered", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		one, two := diary(h), ages(h, typeInt8)
		m.watch(one, two)
		for _, tt := range m.targets {
			w := sequenced.Work{Put: []sequenced.Record{{Key: []byte{}, Seq: []byte("d"), At: []byte{}, Body: []byte("definition")}, tt.tombstone(cells{9, "old"}, "\x10", "a", 5), tt.tombstone(cells{9, "young"}, "\x20", "a", 50)}}
			for i := range 600 {
				w.Put = append(w.Put, tt.record(cells{i, awkward[i%len(awkward)]}, "\x01\x00", fmt.Sprintf("%04d", i), "b"))
			}
			m.write(tt.hidden(w))
		}
		each := func(work func(tt target) sequenced.Work, rounds ...scd.Round) func() {
			return func() { m.write(one.hidden(work(one), rounds...), two.hidden(work(two))) }
		}
		id := func(tt target, i int, seq, at string) sequenced.RecordID {
			rec := tt.record(cells{i, awkward[i%len(awkward)]}, seq, at, "")
			return rec.ID()
		}
		m.tell(
			each(func(tt target) (w sequenced.Work) { // put, replaced, removed, in the place of another
				for i := range 300 {
					rec := tt.record(cells{i, awkward[i%len(awkward)]}, "\x02", "p", "new")
					switch i % 3 {
					case 0:
						w.Remove = append(w.Remove, id(tt, i, "\x01\x00", fmt.Sprintf("%04d", i)))
					case 1:
						rec.Seq, rec.At = []byte("\x01\x00"), fmt.Appendf(nil, "%04d", i)
					}
					w.Put = append(w.Put, rec)
				}
				w.Counts = sequenced.Counts{Late: 3, Duplicates: 1}
				return w
			}),
			each(func(tt target) sequenced.Work {
				return sequenced.Work{ForgetBefore: 10, Put: []sequenced.Record{{Key: []byte{}, Seq: []byte("d"), At: []byte{}, Body: []byte("another")}}, Counts: sequenced.Counts{Ties: 1}}
			}),
			func() { // the same records twice in one transaction
				for i, work := range []func(tt target) sequenced.Work{
					func(tt target) sequenced.Work {
						return sequenced.Work{Remove: []sequenced.RecordID{id(tt, 400, "\x01\x00", "0400")}, Put: []sequenced.Record{tt.record(cells{400, awkward[0]}, "\x05", "p", "1")}}
					},
					func(tt target) sequenced.Work {
						return sequenced.Work{Remove: []sequenced.RecordID{id(tt, 400, "\x05", "p")}, Put: []sequenced.Record{tt.tombstone(cells{400, awkward[0]}, "\x01\x00", "0400", 7)}}
					},
				} {
					b := m.batch(one.hidden(work(one)), two.hidden(work(two)))
					b.First, b.More = i == 0, i == 0
					if err := m.w.Apply(m.ctx, b); err != nil {
						t.Fatalf("Apply: %v", err)
					}
				}
			},
			each(func(tt target) sequenced.Work {
				at := sequenced.Place{Seq: []byte("\x01\x00"), At: []byte("0500")}
				return sequenced.Work{TruncateBelow: at, HeadChanged: true, Head: sequenced.Head{Truncated: at, Horizon: []byte("\x10")}, Counts: sequenced.Counts{Truncated: 9}}
			}),
			each(func(tt target) sequenced.Work {
				return sequenced.Work{ForgetBefore: 1000, HeadChanged: true, Head: sequenced.Head{Truncated: sequenced.Place{Seq: []byte("\xff"), At: []byte("z")}, Horizon: []byte("\xff\xff")}}
			}),
		)
	}},

	{"rows that a truncate of what is remembered takes", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		tt := diary(h)
		m.watch(tt)
		var w sequenced.Work
		var rd scd.Round
		for i := range 40 {
			w.Put = append(w.Put, tt.record(cells{i, "w"}, fmt.Sprintf("%08d", i), "p", "b"))
			rd.Inserts = append(rd.Inserts, tt.row(text, cells{i, "w", i}))
		}
		slices.SortFunc(rd.Inserts, func(a, b change.Row) int { return bytes.Compare(a, b) })
		m.write(tt.hidden(w, rd))
		below := func(n int) func() {
			return func() {
				at := sequenced.Place{Seq: []byte(fmt.Sprintf("%08d", n)), At: []byte("p")}
				m.write(tt.hidden(sequenced.Work{TruncateBelow: at, HeadChanged: true, Head: sequenced.Head{Truncated: at}},
					scd.Round{Upserts: []change.Row{tt.row(text, cells{n - 1, "w", -1}), tt.row(text, cells{n + 1, "w", -1})}}))
			}
		}
		m.tell(below(5), below(20), below(30))
	}},

	{"bitemporal targets", nil, func(t *testing.T, h Harness) {
		if _, feeds := h.(fed); feeds {
			return // a feed is of what the destination keeps: a target of type 1
		}
		rnd := random(t)
		m := beginTimes(t, h)
		var lives []*bitemporalLife
		for _, ld := range ladders {
			if len(ld.types) == 1 {
				l := newBitemporalLife(m.rig, "both_"+ld.name, ld.types[0], rnd.IntN(2) == 0)
				l.begin(rnd)
				lives = append(lives, l)
				m.targets = append(m.targets, l.target)
			}
		}
		var chapters []func()
		for i := range 5 {
			chapters = append(chapters, func() {
				var parts []sink.TargetRounds
				for _, l := range lives {
					l.anew()
					n := len(l.coming)
					parts = append(parts, l.gather(l.coming[n*i/5:n*(i+1)/5]...))
				}
				m.write(parts...)
			})
		}
		m.tell(chapters...)
	}},

	{"every type, by key and without one", nil, func(t *testing.T, h Harness) {
		if _, feeds := h.(fed); feeds {
			return // types mean nothing to it
		}
		types, err := Values()
		if err != nil {
			t.Fatal(err)
		}
		m := beginTimes(t, h)
		type valued struct {
			target
			vt ValueType
		}
		var list []valued
		for i, vt := range types {
			vt = taken(h, vt)
			keyed, free := valueTarget(h, fmt.Sprintf("keyed%d", i), vt.Type, scd.Type1), valueTarget(h, fmt.Sprintf("free%d", i), vt.Type, scd.Type1)
			free.Columns[0].Key, free.AppendOnly = false, true
			history := valueTarget(h, fmt.Sprintf("history%d", i), vt.Type, scd.Type2)
			if i%3 != 0 {
				list = append(list, valued{keyed, vt})
			} else {
				list = append(list, valued{history, vt})
			}
			list = append(list, valued{free, vt})
			m.watch(list[len(list)-2].target, free)
		}
		// In chapter n row k gets value k+n.
		write := func(n int) func() {
			return func() {
				var parts []sink.TargetRounds
				for _, v := range list {
					f := m.forms(v.vt.Type)[len(m.forms(v.vt.Type))-1]
					p := sink.TargetRounds{Target: v.Target, Binary: f == binary, Rounds: []scd.Round{{}}}
					values := len(v.vt.Values) + 1
					for k := range values {
						row := valueRow(v.vt, k, (k+n)%values, f)
						switch {
						case v.AppendOnly:
							p.Rounds[0].Inserts = append(p.Rounds[0].Inserts, row)
						case v.Kind == scd.Type2:
							p.Rounds[0].Steps = append(p.Rounds[0].Steps, scd.Step{Key: v.key(f, cells{k}), N: 1, Lo: int64(1000 * (n + 1)), Row: row})
						default:
							p.Rounds[0].Upserts = append(p.Rounds[0].Upserts, row)
						}
					}
					slices.SortFunc(p.Rounds[0].Upserts, func(a, b change.Row) int { return bytes.Compare(a, b) })
					slices.SortFunc(p.Rounds[0].Steps, func(a, b scd.Step) int { return bytes.Compare(a.Key, b.Key) })
					parts = append(parts, p)
				}
				m.write(parts...)
			}
		}
		write(0)()
		first := m.point("")
		write(1)()
		write(2)()
		second := m.point("")
		write(0)()
		m.rewind(second)
		m.rewind(first)
	}},

	{"files, quarantine, violations and the mark", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		one, two := makeTarget(h, "one", scd.Type1, "id int4 key", "a text"), makeTarget(h, `two "t'`, scd.Type1, "id int4 key", "a text")
		m.watch(one, two)
		file := func(relation int, path string, size int64) change.File {
			return change.File{Relation: pointRelations[relation], Path: path, Size: size, Modified: time.Unix(1_700_000_000, 123456789), Checksum: "c" + path, Rows: size + 1}
		}
		aside := func(t target, n byte) sink.Aside {
			return sink.Aside{Flow: "it's", Target: t.Name, Reason: "bad", Position: "dir/a b:7", At: []byte{n, 0}, Time: time.UnixMicro(1_700_000_000_000_000 + int64(n)).UTC(), Event: []byte(`{"odd": "ä\\"}`)}
		}
		met := func(t target, expectation string, n int64) sink.Violation {
			return sink.Violation{Target: t.Name, Flow: "it's", Expectation: expectation, Met: "drop", Events: n}
		}
		unresolved := func(flow string, nth ...int) (ids []int64) {
			t.Helper()
			n := 0
			err := m.memory().Quarantine(m.ctx, flow, func(a sink.Aside) error {
				if slices.Contains(nth, n) {
					ids = append(ids, a.ID)
				}
				n++
				return nil
			})
			if err != nil || len(ids) != len(nth) {
				t.Fatalf("%d of %d events are there, %v", len(ids), len(nth), err)
			}
			return ids
		}
		write := func(fill func(b *sink.Batch)) func() {
			return func() {
				t.Helper()
				b := m.batch(one.part(text, round{upserts: []cells{{1, fmt.Sprint(m.pos)}}}))
				fill(b)
				if err := m.w.Apply(m.ctx, b); err != nil {
					t.Fatalf("Apply: %v", err)
				}
			}
		}
		write(func(b *sink.Batch) {
			b.Files = []change.File{file(0, "a", 1), file(1, "a", 2)}
			b.Aside = []sink.Aside{aside(one, 1), aside(two, 2), aside(one, 3), aside(two, 4), aside(one, 5)}
			b.Violations = []sink.Violation{met(one, "e", 1), met(two, "e", 5)}
		})()
		var numbers []int64
		for _, chapter := range []func(){
			write(func(b *sink.Batch) {
				b.Files = []change.File{file(0, "a", 10), file(0, "b", 3), file(0, "a", 11)}
				b.Resolved = unresolved("", 0, 3)
				b.Violations = []sink.Violation{met(one, "e", 2), met(one, "new", 1)}
			}),
			write(func(b *sink.Batch) {
				b.Files = []change.File{file(1, "", 0), file(0, "b", 4)}
				b.Aside = []sink.Aside{aside(one, 6), aside(two, 7)}
				b.Violations = []sink.Violation{met(two, "e", 2)}
			}),
			func() {
				if err := m.memory().SetAside(m.ctx, []sink.Aside{aside(two, 8)}, []sink.Violation{met(two, "beside", 1)}); err != nil {
					t.Fatalf("SetAside: %v", err)
				}
				if err := m.memory().Resolve(m.ctx, unresolved("", 1, 2)); err != nil {
					t.Fatalf("Resolve: %v", err)
				}
				mark := m.mark()
				mark.Position = change.Position{}
				mark.Tables = []checkpoint.Table{m.done(one, checkpoint.Parked), m.done(two, checkpoint.Live)}
				mark.Tables[0].Reason = "a reason"
				mark.Flows = []checkpoint.Flow{{Target: two.Name, Name: "f", Order: 1, Source: two.Source, ID: 5, Phase: checkpoint.Live, Since: change.LSN(9)}}
				if err := m.w.Save(m.ctx, mark); err != nil {
					t.Fatalf("Save: %v", err)
				}
			},
			func() {
				if err := m.memory().Afresh(m.ctx, two.Name, "it's"); err != nil {
					t.Fatalf("Afresh: %v", err)
				}
				if err := m.memory().Forget(m.ctx, pointRelations[:1]); err != nil {
					t.Fatalf("Forget: %v", err)
				}
				mark := m.mark()
				mark.Position, mark.Slot = change.Position{}, "another"
				mark.Tables = []checkpoint.Table{m.done(one, checkpoint.Live), m.done(two, checkpoint.Copying)}
				mark.Flows = []checkpoint.Flow{{Target: two.Name, Name: "f", Order: 1, Source: two.Source, ID: 6, Phase: checkpoint.Left, Since: change.LSN(10)}}
				if err := m.w.Save(m.ctx, mark); err != nil {
					t.Fatalf("Save: %v", err)
				}
			},
			write(func(b *sink.Batch) { b.Files = []change.File{file(0, "b", 5)}; b.Aside = []sink.Aside{aside(one, 9)} }),
		} {
			numbers = append(numbers, m.point(""))
			chapter()
		}
		m.rewind(numbers[4])
		m.rewind(numbers[3])
		m.rewind(numbers[2], one) // the other's quarantine and violations stay
		write(func(b *sink.Batch) { b.Aside = []sink.Aside{aside(one, 9)}; b.Resolved = unresolved("", 0) })()
		m.rewind(numbers[2])
		m.rewind(numbers[0])
	}},
}
