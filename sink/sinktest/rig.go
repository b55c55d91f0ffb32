package sinktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// rig is a Writer that owns its pipeline, and what a test does with it.
type rig struct {
	t   testing.TB
	h   Harness
	w   sink.Writer
	ctx context.Context
	pos uint64 // of the last batch
}

// begin opens a Writer and takes ownership.
func begin(t testing.TB, h Harness) *rig {
	t.Helper()
	r := &rig{t: t, h: h, ctx: t.Context()}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	w := r.h.Open(r.t)
	r.t.Cleanup(func() { w.Close(context.Background()) })
	if err := w.Own(r.ctx, owner(), 0); err != nil {
		r.t.Fatalf("Own: %v", err)
	}
	r.w = w
}

// reopen is what a pipeline does after an error: close, open, own, ask the mark.
func (r *rig) reopen() checkpoint.Mark {
	r.t.Helper()
	if err := r.w.Close(r.ctx); err != nil {
		r.t.Fatalf("Close: %v", err)
	}
	r.open()
	return r.mark()
}

func (r *rig) mark() checkpoint.Mark {
	r.t.Helper()
	m, err := r.w.State(r.ctx)
	if err != nil {
		r.t.Fatalf("State: %v", err)
	}
	return m
}

// owner is this process, as a new run of the program.
func owner() checkpoint.Owner { return ownerOf(os.Getpid()) }

func ownerOf(pid int) checkpoint.Owner {
	var b [8]byte
	rand.Read(b[:])
	return checkpoint.Owner{Host: "sinktest", BootID: "boot", PID: pid, Started: startedAt(pid), Instance: hex.EncodeToString(b[:])}
}

// startedAt reads a process's start time in clock ticks since boot; 0 where the
// system does not say.
func startedAt(pid int) int64 {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')'):]), " ")
	fields := strings.Fields(after)
	if len(fields) < 20 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[19], 10, 64)
	return n
}

// form is how values cross: PostgreSQL's text or binary.
type form bool

const (
	text   form = false
	binary form = true
)

func (f form) String() string {
	if f == binary {
		return "binary"
	}
	return "text"
}

// absent is a cell that was not sent.
type absent struct{}

// cells are the values of a row or key: nil is NULL, absent{} was not sent, an
// int or a string is a value.
type cells []any

// target describes one of the suite's tables. The column types are int4, int8
// and text, which every destination has.
type target struct{ *scd.Target }

var (
	typeInt4 = change.Type{Kind: change.Int32, Name: "integer", ID: 23, BuiltIn: true}
	typeInt8 = change.Type{Kind: change.Int64, Name: "bigint", ID: 20, BuiltIn: true}
	typeText = change.Type{Kind: change.Text, Name: "text", ID: 25, BuiltIn: true}
)

// makeTarget reads columns written as "name type", with the marks key and
// untracked after them: "id int4 key".
func makeTarget(h Harness, name string, kind scd.Kind, columns ...string) target {
	t := &scd.Target{
		Name:   change.Name{Schema: h.Schema(), Table: name},
		Source: change.Name{Schema: "public", Table: name},
		Kind:   kind,
	}
	_, t.ChangeFeed = h.(fed)
	for _, spec := range columns {
		f := strings.Fields(spec)
		c := scd.Column{Name: f[0], Type: map[string]change.Type{"int4": typeInt4, "int8": typeInt8, "text": typeText}[f[1]]}
		c.Key = slices.Contains(f, "key")
		c.Tracked = !c.Key && !slices.Contains(f, "untracked")
		c.Nullable = !c.Key
		t.Columns = append(t.Columns, c)
	}
	t.AppendOnly = len(t.Keys()) == 0
	return target{t}
}

// create makes the target in the destination.
func (r *rig) create(t target) target {
	r.t.Helper()
	if err := r.w.Create(r.ctx, t.Target); err != nil {
		r.t.Fatalf("Create %s: %v", t.Name, err)
	}
	return t
}

func value(c any, t change.Type, f form) change.Value {
	switch c := c.(type) {
	case nil:
		return change.Value{State: change.Null}
	case absent:
		return change.Value{State: change.Absent}
	case string:
		if f == binary {
			return change.Value{State: change.Binary, Data: []byte(c)}
		}
		return change.Value{State: change.AsText, Data: []byte(c)}
	case int:
		if f == text {
			return change.Value{State: change.AsText, Data: strconv.AppendInt(nil, int64(c), 10)}
		}
		if t.Kind == change.Int32 {
			return change.Value{State: change.Binary, Data: []byte{byte(c >> 24), byte(c >> 16), byte(c >> 8), byte(c)}}
		}
		u := uint64(c)
		return change.Value{State: change.Binary, Data: []byte{byte(u >> 56), byte(u >> 48), byte(u >> 40), byte(u >> 32), byte(u >> 24), byte(u >> 16), byte(u >> 8), byte(u)}}
	}
	panic(fmt.Sprintf("a cell cannot be a %T", c))
}

// row encodes a whole row.
func (t target) row(f form, c cells) change.Row {
	if c == nil {
		return nil
	}
	if len(c) != len(t.Columns) {
		panic(fmt.Sprintf("%s has %d columns, the row %d", t.Name, len(t.Columns), len(c)))
	}
	r := change.Row{}
	for i := range c {
		r = r.Append(value(c[i], t.Columns[i].Type, f))
	}
	return r
}

// key encodes a key.
func (t target) key(f form, c cells) scd.Key {
	if c == nil {
		return nil
	}
	r := scd.Key{}
	for i, k := range t.Keys() {
		r = r.Append(value(c[i], t.Columns[k].Type, f))
	}
	return r
}

// keyOf picks the key out of a row.
func (t target) keyOf(row cells) cells {
	var key cells
	for _, k := range t.Keys() {
		key = append(key, row[k])
	}
	return key
}

// round is an scd.Round of cells.
type round struct {
	truncate   bool
	truncateAt int64
	deletes    []cells
	moves      []move
	inserts    []cells
	upserts    []cells
	patches    []cells
	steps      []step
}

type move struct{ old, row cells }

type step struct {
	key        cells
	n          int // 0 means 1
	lo, loVoid int64
	row        cells // nil: close
	origin     cells
}

// encode makes the scd.Round, its lists sorted as the contract says.
func (t target) encode(r round, f form) scd.Round {
	out := scd.Round{Truncate: r.truncate, TruncateAt: r.truncateAt}
	for _, k := range r.deletes {
		out.Deletes = append(out.Deletes, t.key(f, k))
	}
	for _, m := range r.moves {
		out.Moves = append(out.Moves, scd.Move{Old: t.key(f, m.old), Row: t.row(f, m.row)})
	}
	rows := func(in []cells) (out []change.Row) {
		if len(t.Keys()) > 0 {
			in = slices.Clone(in)
			slices.SortStableFunc(in, func(a, b cells) int { return bytes.Compare(t.key(f, t.keyOf(a)), t.key(f, t.keyOf(b))) })
		}
		for _, c := range in {
			out = append(out, t.row(f, c))
		}
		return out
	}
	out.Inserts, out.Upserts, out.Patches = rows(r.inserts), rows(r.upserts), rows(r.patches)
	for _, s := range r.steps {
		out.Steps = append(out.Steps, scd.Step{Key: t.key(f, s.key), N: max(s.n, 1), Lo: s.lo, LoVoid: s.loVoid, Row: t.row(f, s.row), Origin: t.key(f, s.origin)})
	}
	slices.SortFunc(out.Deletes, func(a, b scd.Key) int { return bytes.Compare(a, b) })
	slices.SortStableFunc(out.Moves, func(a, b scd.Move) int { return bytes.Compare(a.Old, b.Old) })
	slices.SortStableFunc(out.Steps, func(a, b scd.Step) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return a.N - b.N
	})
	return out
}

// part is one target's part of a batch.
func (t target) part(f form, rounds ...round) sink.TargetRounds {
	p := sink.TargetRounds{Target: t.Target, Binary: f == binary}
	for _, r := range rounds {
		p.Rounds = append(p.Rounds, t.encode(r, f))
	}
	return p
}

// batch is a whole batch at the next position.
func (r *rig) batch(parts ...sink.TargetRounds) *sink.Batch {
	r.pos += 16
	return &sink.Batch{
		Targets:    parts,
		Position:   change.LSN(r.pos),
		Resume:     fmt.Sprintf("log.000003 0 0-1-%d", r.pos),
		CommitTime: time.UnixMicro(1_700_000_000_000_000 + int64(r.pos)).UTC(),
		First:      true,
	}
}

// apply writes rounds as one batch and fails the test if it cannot.
func (r *rig) apply(t target, f form, rounds ...round) {
	r.t.Helper()
	if err := r.w.Apply(r.ctx, r.batch(t.part(f, rounds...))); err != nil {
		r.t.Fatalf("Apply: %v", err)
	}
}

// pieces writes rounds as the pieces of one source transaction, one round each.
func (r *rig) pieces(t target, f form, rounds ...round) {
	r.t.Helper()
	for i, rd := range rounds {
		b := r.batch(t.part(f, rd))
		b.First, b.More = i == 0, i < len(rounds)-1
		if err := r.w.Apply(r.ctx, b); err != nil {
			r.t.Fatalf("Apply piece %d: %v", i+1, err)
		}
	}
}

// quote makes an SQL identifier; both rules (double quotes, doubled inside) are
// the SQL standard's.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func sqlName(n change.Name) string { return quote(n.Schema) + "." + quote(n.Table) }

// contents reads a target as lines "1|a|NULL", sorted; a type 2 target's lines
// end with start and end, instants in microseconds.
func (r *rig) contents(t target) []string {
	r.t.Helper()
	got := lines(r.h.Query(r.t, "SELECT "+strings.Join(r.columns(t), ", ")+" FROM "+sqlName(t.Name)))
	if t.ChangeFeed {
		r.replays(t, got)
	}
	return got
}

// columns is the expressions that contents reads.
func (r *rig) columns(t target) []string {
	var list []string
	for _, c := range t.Columns {
		list = append(list, quote(c.Name))
	}
	switch {
	case t.Kind == scd.Type2 && (t.Sequence == nil || t.Sequence.Kind == change.TimestampTZ):
		list = append(list, r.h.Micros(quote(scd.StartColumn)), r.h.Micros(quote(scd.EndColumn)))
	case t.Kind == scd.Type2 && len(t.SequenceFields) > 0:
		list = append(list, sequenceText(t, scd.StartColumn), sequenceText(t, scd.EndColumn))
	case t.Kind == scd.Type2:
		list = append(list, quote(scd.StartColumn), quote(scd.EndColumn))
	}
	return list
}

// sequenceText is a start or end of several columns as their texts with slashes
// between, whatever the destination holds it as.
func sequenceText(t target, column string) string {
	var parts []string
	for i := range t.SequenceFields {
		parts = append(parts, fmt.Sprintf("(to_json(%s) ->> '%s')", quote(column), t.SequenceFields[i].Name))
	}
	return strings.Join(parts, " || '/' || ")
}

func lines(rows [][]*string) []string {
	out := []string{}
	for _, row := range rows {
		var b strings.Builder
		for i, c := range row {
			if i > 0 {
				b.WriteByte('|')
			}
			if c == nil {
				b.WriteString("NULL")
			} else {
				b.WriteString(*c)
			}
		}
		out = append(out, b.String())
	}
	slices.Sort(out)
	return out
}

// expect compares a target's contents with lines, in any order.
func (r *rig) expect(t target, want ...string) {
	r.t.Helper()
	got := r.contents(t)
	want = slices.Clone(want)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Fatalf("%s holds\n  %s\nwant\n  %s", t.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// copyOf makes a COPY stream of rows. For a type 2 target the rows end with the
// start in microseconds; the end is NULL.
func (t target) copyOf(f form, rows ...cells) sink.Copy {
	var b bytes.Buffer
	if f == binary {
		b.WriteString("PGCOPY\n\377\r\n\000")
		b.Write(make([]byte, 8))
	}
	for _, row := range rows {
		var vs []change.Value
		for i, c := range t.Columns {
			vs = append(vs, value(row[i], c.Type, f))
		}
		if t.Kind == scd.Type2 {
			vs = append(vs, instant(int64(row[len(t.Columns)].(int)), f), change.Value{State: change.Null})
		}
		appendCopyRow(&b, f, vs)
	}
	if f == binary {
		b.Write([]byte{0xff, 0xff})
	}
	return sink.Copy{Binary: f == binary, Rows: &b}
}

// appendCopyRow writes one row in COPY's text or binary format.
func appendCopyRow(b *bytes.Buffer, f form, vs []change.Value) {
	if f == binary {
		b.Write([]byte{byte(len(vs) >> 8), byte(len(vs))})
		for _, v := range vs {
			if v.State == change.Null {
				b.Write([]byte{0xff, 0xff, 0xff, 0xff})
				continue
			}
			n := len(v.Data)
			b.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
			b.Write(v.Data)
		}
		return
	}
	for i, v := range vs {
		if i > 0 {
			b.WriteByte('\t')
		}
		if v.State == change.Null {
			b.WriteString(`\N`)
			continue
		}
		for _, c := range v.Data {
			switch c {
			case '\\':
				b.WriteString(`\\`)
			case '\n':
				b.WriteString(`\n`)
			case '\r':
				b.WriteString(`\r`)
			case '\t':
				b.WriteString(`\t`)
			default:
				b.WriteByte(c)
			}
		}
	}
	b.WriteByte('\n')
}

// instant is a timestamp with time zone, given in microseconds since 1970.
func instant(micros int64, f form) change.Value {
	if f == text {
		return change.Value{State: change.AsText, Data: []byte(time.UnixMicro(micros).UTC().Format("2006-01-02 15:04:05.999999-07"))}
	}
	v := value(int(micros-946_684_800_000_000), typeInt8, binary) // PostgreSQL counts from 2000-01-01
	return v
}

// failingReader gives what it has, then an error.
type failingReader struct {
	r   io.Reader
	err error
}

func (f failingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err == io.EOF {
		err = f.err
	}
	return n, err
}

// load copies rows into the target and returns what Load says.
func (r *rig) load(t target, f form, empty bool, rows ...cells) {
	r.t.Helper()
	n, err := r.w.Load(r.ctx, t.Target, t.copyOf(f, rows...), empty, r.done(t, checkpoint.Live))
	if err != nil {
		r.t.Fatalf("Load: %v", err)
	}
	if n != int64(len(rows)) {
		r.t.Fatalf("Load says %d rows, want %d", n, len(rows))
	}
}

// done is the table state that a load of t records.
func (r *rig) done(t target, phase checkpoint.Phase) checkpoint.Table {
	return checkpoint.Table{Target: t.Name, Source: t.Source, ID: 4711, Phase: phase, Since: change.LSN(8)}
}
