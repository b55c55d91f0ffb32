package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Database is a destination in memory. It outlives its connections.
type Database struct {
	mu      sync.Mutex
	Faults  *Faults
	Mark    checkpoint.Mark
	Targets map[change.Name]*Store
	durable change.Position
	epoch   int64
	Ends    []change.Position // of every committed batch, for asserting that marks are commit ends

	points  []point
	numbers int64                  // of points so far
	filled  map[change.Name]int64  // the newest point when a target was last made anew: none up to it can restore it
	Pointed func(checkpoint.Point) // if not nil, is told of every new point, beside nothing else
}

// NewDatabase makes an empty one.
func NewDatabase(f *Faults) *Database {
	return &Database{Faults: f, Targets: map[change.Name]*Store{}, filled: map[change.Name]int64{}}
}

// Sink is a connection. It implements sink.Writer.
type Sink struct {
	*Database
	epoch   int64
	broken  bool
	staged  map[change.Name]*Store // of the open transaction
	opening bool
}

func (s *Sink) Own(context.Context, checkpoint.Owner, time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Faults.hit("own"); err != nil {
		return err
	}
	s.Database.epoch++
	s.epoch = s.Database.epoch
	s.Mark.Epoch = s.epoch
	return nil
}

func (s *Sink) Heartbeat(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fenced()
}

func (s *Sink) fenced() error {
	if s.epoch != s.Database.epoch {
		return fault.ErrFenced
	}
	return nil
}

func (s *Sink) State(context.Context) (checkpoint.Mark, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.Mark
	m.Tables = slices.Clone(m.Tables)
	return m, s.Faults.hit("state")
}

func (s *Sink) Save(_ context.Context, m checkpoint.Mark) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fenced(); err != nil {
		return err
	}
	if err := s.Faults.hit("save"); err != nil {
		return err
	}
	tables := s.Mark.Tables
	for _, t := range m.Tables {
		tables = put(tables, t)
	}
	if m.Position.IsZero() {
		m.Position, m.CommitTime = s.Mark.Position, s.Mark.CommitTime
	}
	m.Tables, m.Epoch = tables, s.epoch
	s.Mark = m
	return s.Faults.after("save")
}

func put(tables []checkpoint.Table, t checkpoint.Table) []checkpoint.Table {
	out := slices.DeleteFunc(slices.Clone(tables), func(have checkpoint.Table) bool { return have.Target == t.Target })
	if t.Phase != checkpoint.None {
		out = append(out, t)
	}
	return out
}

func (s *Sink) Binary(change.Type) bool { return false }

func (s *Sink) Plan(_ context.Context, t *scd.Target) (sink.Plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.Targets[t.Name]
	return sink.Plan{Exists: st != nil, Rows: st != nil && len(st.Rows)+len(st.History) > 0}, nil
}

func (s *Sink) Create(_ context.Context, t *scd.Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Targets[t.Name] == nil {
		s.Targets[t.Name] = NewStore()
	}
	return nil
}

func (s *Sink) Load(_ context.Context, t *scd.Target, in sink.Copy, _ bool, done checkpoint.Table) (int64, error) {
	st := NewStore()
	columns := len(t.Columns)
	if t.Kind == scd.Type2 {
		columns += 2
	}
	r := copystream.NewReader(in.Rows, in.Binary, columns)
	var n int64
	for {
		row, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		vals, err := row.Values(nil, columns)
		if err != nil {
			return 0, err
		}
		var cells []string
		for _, v := range vals {
			cells = append(cells, string(v.Data))
		}
		if t.Kind == scd.Type2 {
			start, err := strconv.ParseInt(cells[len(Columns)], 10, 64)
			if err != nil {
				return 0, err
			}
			st.History[cells[ColID]] = []Version{{Start: start, Vals: cells[:len(Columns)]}}
		} else {
			st.Rows[cells[ColID]] = cells
		}
		n++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fenced(); err != nil {
		return 0, err
	}
	if err := s.Faults.hit("load"); err != nil {
		return 0, err
	}
	s.Targets[t.Name] = st
	s.filled[t.Name] = s.numbers
	s.Mark.Tables = put(s.Mark.Tables, done)
	return n, s.Faults.after("load")
}

func (s *Sink) Apply(_ context.Context, b *sink.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return errors.New("used after an error")
	}
	err := s.apply(b)
	s.broken = err != nil
	return err
}

func (s *Sink) apply(b *sink.Batch) error {
	if err := s.fenced(); err != nil {
		return err
	}
	if err := s.Faults.hit("apply"); err != nil {
		return err
	}
	if b.First != !s.opening {
		return fmt.Errorf("piece with First %v while a transaction is open: %v", b.First, s.opening)
	}
	if b.First {
		s.staged = map[change.Name]*Store{}
	}
	for _, t := range b.Targets {
		st := s.staged[t.Target.Name]
		if st == nil {
			st = s.Targets[t.Target.Name].Clone()
			s.staged[t.Target.Name] = st
		}
		st.Piecewise(!b.First || b.More)
		st.Restored = t.Restored
		for _, r := range t.Rounds {
			if err := st.Apply(t.Target.Kind, r); err != nil {
				return fault.Corrupted("%s: %v", t.Target.Name, err)
			}
		}
	}
	s.opening = b.More
	if b.More {
		return nil
	}
	if b.Position.Before(s.Mark.Position) {
		return fmt.Errorf("the mark would go back from %s to %s", s.Mark.Position, b.Position)
	}
	for name, st := range s.staged {
		st.Piecewise(false)
		s.Targets[name] = st
	}
	s.Mark.Position, s.Mark.Resume, s.Mark.CommitTime = b.Position, b.Resume, b.CommitTime
	s.Ends = append(s.Ends, b.Position)
	s.Mark.Tables = slices.Clone(s.Mark.Tables)
	for i := range s.Mark.Tables {
		if slices.Contains(b.Live, s.Mark.Tables[i].Target) {
			s.Mark.Tables[i].Phase = checkpoint.Live
		}
	}
	return s.Faults.after("apply")
}

// Durable lags behind what was applied, by one question.
func (s *Sink) Durable(context.Context) (change.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.durable
	s.durable = s.Mark.Position
	return d, nil
}

func (s *Sink) Scan(_ context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.Targets[t.Name]
	rows := maps.Clone(st.Rows)
	for k, h := range st.History {
		if len(h) > 0 && h[len(h)-1].End == 0 {
			rows[k] = h[len(h)-1].Vals
		}
	}
	for k, vals := range rows {
		if err := fn([]byte(k+"\x00"), []byte(canonical(vals))); err != nil {
			return err
		}
	}
	return nil
}

func canonical(vals []string) string {
	out := ""
	for _, v := range vals {
		out += v + "\x00"
	}
	return out
}

func (s *Sink) Canonical(t *scd.Target, row change.Row, dst []byte) ([]byte, int, error) {
	vals, err := row.Values(nil, len(t.Columns))
	if err != nil {
		return nil, 0, err
	}
	var cells []string
	for _, v := range vals {
		cells = append(cells, string(v.Data))
	}
	return append(dst, canonical(cells)...), len(cells[ColID]) + 1, nil
}

func (s *Sink) Invariants(context.Context, *scd.Target) ([]string, error) { return nil, nil }

func (s *Sink) Show(context.Context, sink.ShowQuery, func([]*string) error) error { return nil }

func (s *Sink) Teardown(context.Context) error { return nil }

func (s *Sink) Close(context.Context) error { return nil }

// Live counts the targets that are live.
func (d *Database) Live() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, t := range d.Mark.Tables {
		if t.Phase == checkpoint.Live {
			n++
		}
	}
	return n
}
