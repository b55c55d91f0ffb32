package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// Server is a source database in memory with one table and one slot. It prunes its
// log up to the slot's confirmed position, as a real one may at any moment: whoever
// confirms too early finds a hole.
type Server struct {
	mu        sync.Mutex
	rnd       *rand.Rand
	table     *Table
	log       []entry // not pruned yet
	states    []State // after every transaction, from the first
	head      uint64
	slot      bool
	confirmed uint64
	keep      uint64 // the keep slot's place; 0: there is none
	published bool
	changed   chan struct{} // closed and made anew when the log grows
	Faults    *Faults
}

type entry struct {
	tx  change.Tx
	end uint64
}

// NewServer makes one whose table holds what a few transactions put there.
func NewServer(rnd *rand.Rand, identity change.Identity, faults *Faults) *Server {
	s := &Server{rnd: rnd, table: NewTable(rnd, identity), head: 100, changed: make(chan struct{}), Faults: faults}
	for range 3 {
		s.Commit()
	}
	return s
}

// Commit runs one random transaction.
func (s *Server) Commit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx, after := s.table.Transaction(6)
	s.states = append(s.states, after)
	// Commits may follow each other directly: then the end of one is the begin of
	// the next.
	tx.Begin = change.LSN(s.head + uint64(s.rnd.IntN(2)*8))
	s.head = tx.Begin.Offset + 8
	tx.End, tx.XID = change.LSN(s.head), uint32(len(s.states))
	if s.slot {
		s.log = append(s.log, entry{tx, s.head})
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// Elsewhere moves the log on without anything for us: another table's work.
func (s *Server) Elsewhere() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head += 16
	close(s.changed)
	s.changed = make(chan struct{})
}

// Rows is the table now; States is it after every transaction.
func (s *Server) Rows() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Rows
}

// States returns the state after every transaction from number n on (0: the first),
// and how many there are.
func (s *Server) States(n int) []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[n:]
}

// Confirmed is the slot's confirmed position.
func (s *Server) Confirmed() change.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return change.LSN(s.confirmed)
}

// Source is a connection to a Server. It implements source.Source.
type Source struct {
	*Server
	pending uint64 // the newest Confirm, sent with the next status
}

func (s *Source) Relations(context.Context) ([]source.Relation, error) {
	return []source.Relation{{Table: s.table.Layout, PrimaryKey: []string{"id"}, Usable: true}}, s.Faults.hit("relations")
}

func (s *Source) State(context.Context) (source.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return source.State{System: "sim", Timeline: 1, Database: "sim", Head: change.LSN(s.head), Slot: source.SlotState{
		Name: "slot", Exists: s.slot, Confirmed: change.LSN(s.confirmed), Restart: change.LSN(s.confirmed),
	}}, s.Faults.hit("state")
}

func (s *Source) Check(context.Context, []source.Followed) ([]source.Finding, error) { return nil, nil }

func (s *Source) PlanPublications(context.Context, []source.Followed) ([]string, error) {
	return nil, nil
}

func (s *Source) Publish(context.Context, []source.Followed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = true
	return s.Faults.hit("publish")
}

func (s *Source) Begin(context.Context) (source.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.published {
		return nil, errors.New("slot made before its publication")
	}
	if err := s.Faults.hit("begin"); err != nil {
		return nil, err
	}
	s.slot, s.confirmed, s.keep, s.log = true, s.head, 0, nil
	return s.snapshot(), s.Faults.after("begin")
}

func (s *Source) Snapshot(context.Context) (source.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot(), s.Faults.hit("snapshot")
}

func (s *Source) snapshot() *Snapshot {
	rows := map[string][]string{}
	for k, v := range s.table.Rows {
		rows[k] = append([]string(nil), v...)
	}
	return &Snapshot{at: s.head, clock: time.UnixMicro(s.table.at).UTC(), rows: rows, states: len(s.states), faults: s.Faults}
}

// Follow gives what lies after from, in random segments, some transactions in
// pieces, with quiet points strewn in.
func (s *Source) Follow(ctx context.Context, from change.Position, _ source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	s.mu.Lock()
	if !s.slot {
		s.mu.Unlock()
		return fault.Refuse("none", "no slot")
	}
	sent := max(from.Offset, s.confirmed)
	s.mu.Unlock()
	for {
		s.mu.Lock()
		changed := s.changed
		seg := &change.Segment{}
		for _, e := range s.log {
			if e.end <= sent {
				continue
			}
			seg.Txs = append(seg.Txs, s.cut(e.tx)...)
			seg.Age = time.Duration(s.rnd.IntN(2)) * time.Second
			seg.Bytes += 64
			sent = e.end
			if s.rnd.IntN(3) == 0 {
				break
			}
		}
		if len(seg.Txs) == 0 && sent < s.head {
			seg.Txs = append(seg.Txs, change.Tx{First: true, Last: true, End: change.LSN(s.head)})
			sent = s.head
		}
		s.mu.Unlock()
		if len(seg.Txs) == 0 {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				s.send()
				return ctx.Err()
			}
		}
		if err := s.Faults.hit("stream"); err != nil {
			return err
		}
		if err := out(ctx, seg); err != nil {
			s.send()
			return err
		}
		s.send()
	}
}

// cut splits some transactions into pieces. Only the last knows the end.
func (s *Source) cut(tx change.Tx) []change.Tx {
	if len(tx.Changes) < 2 || s.rnd.IntN(3) != 0 {
		return []change.Tx{tx}
	}
	var out []change.Tx
	rest := tx.Changes
	for len(rest) > 0 {
		n := 1 + s.rnd.IntN(len(rest))
		p := tx
		p.First, p.Last, p.End, p.Changes = len(out) == 0, n == len(rest), change.Position{}, rest[:n]
		if p.Last {
			p.End = tx.End
		}
		out, rest = append(out, p), rest[n:]
	}
	return out
}

func (s *Source) Watch(context.Context) ([]source.Loss, error) { return nil, nil }

func (s *Source) Confirm(p change.Position) {
	s.mu.Lock()
	s.pending = max(s.pending, p.Offset)
	s.mu.Unlock()
}

// send is a status update: the slot moves and the log is pruned.
func (s *Source) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed = max(s.confirmed, s.pending)
	s.prune()
}

// prune forgets the log that no slot holds.
func (s *Server) prune() {
	from := s.confirmed
	if s.keep != 0 {
		from = min(from, s.keep)
	}
	kept := s.log[:0]
	for _, e := range s.log {
		if e.end > from {
			kept = append(kept, e)
		}
	}
	s.log = kept
}

func (s *Source) Head(context.Context) (change.Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return change.LSN(s.head), nil
}

func (s *Source) Drop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slot, s.keep, s.published, s.log = false, 0, false, nil
	return nil
}

func (s *Source) Release(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slot, s.log = false, nil
	return nil
}

func (s *Source) Close(context.Context) error { return nil }

// Snapshot is the table at one moment.
type Snapshot struct {
	at     uint64
	clock  time.Time
	rows   map[string][]string
	states int
	faults *Faults
}

func (s *Snapshot) Position() change.Position { return change.LSN(s.at) }
func (s *Snapshot) Clock() time.Time          { return s.clock }
func (s *Snapshot) Close(context.Context) error {
	return nil
}

func (s *Snapshot) Copy(_ context.Context, r source.CopyRequest, w io.Writer) (int64, error) {
	for _, vals := range s.rows {
		if err := s.faults.hit("copy row"); err != nil {
			return 0, err
		}
		line := strings.Join(vals, "\t")
		if r.StartAt != nil {
			line += fmt.Sprintf("\t%d\t\\N", r.StartAt.UnixMicro())
		}
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			return 0, err
		}
	}
	return int64(len(s.rows)), nil
}
