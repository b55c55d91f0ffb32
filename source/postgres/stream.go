package postgres

import (
	"context"
	"encoding/binary"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/spool"
	"tailrace/source/postgres/pgoutput"
)

// defaultSpoolMax bounds the spool if nobody says.
const defaultSpoolMax = 20 << 30

// streams are the transactions that the server sends while they are open.
//
// They come in blocks, between whole transactions and between blocks of each
// other. Nothing of them counts before their commit, so their messages go to the
// spool as they are, and when the commit comes they are taken from there as if the
// server had sent them then: BEGIN, the messages, COMMIT. So there is one way in
// which a transaction becomes changes, and its changes, their ordinals, the places
// at which it is cut and the layouts it uses are the same whether it was streamed
// or not. What was undone by then (the transaction, or its part since a savepoint)
// is not in the spool any more: a subtransaction's changes, and those of the
// subtransactions inside it, are everything between its first change and its
// abort, so its abort cuts the transaction's end off.
//
// Layouts. The server sends a relation's layout once to all, and beside this once
// to each streamed transaction, whose commit (and not its abort) makes it known to
// all. Here the layouts of a streamed transaction are its own while it is taken
// from the spool, and then become known to all, except where others have received
// a newer one meanwhile: by then the server counts on that.
type streams struct {
	spool   *spool.Spool    // nil: streaming was not asked for
	xid     uint32          // of the block that is being received; 0: none
	open    map[uint32]bool // of transactions that have begun
	arrival [8]byte         // room for the number behind a Relation message
	told    func(int64)     // of the spool's size; may be nil
}

func (s *Source) openSpool() (*spool.Spool, error) {
	dir, most := s.cfg.SpoolDir, s.cfg.SpoolMax
	if dir == "" {
		dir = filepath.Join(os.TempDir(), derive(s.cfg.Pipeline, nameLimit))
	}
	if most == 0 {
		most = defaultSpoolMax
	}
	return spool.Open(dir, s.cfg.Pipeline, most)
}

// cannotStream reports whether the stream has ended for a reason that may be gone
// without streaming. A server (15 to 18 were tried) that decodes an open transaction
// in which the definition of a table was changed, the change undone by ROLLBACK TO, and
// then changed again, finds no definition valid and gives up with an internal error,
// or cannot print a value; the same each time. After the commit it decodes the same
// transaction well. If a piece of a transaction was handed on, only the caller can
// begin anew; that transaction was not streamed.
func (f *follower) cannotStream() bool {
	return f.report != nil && (strings.HasPrefix(f.report.Code, "XX") || strings.HasPrefix(f.report.Code, "22")) && !(f.build.Open && f.build.Cut)
}

// stream takes the parsed message around blocks of open transactions.
func (f *follower) stream(ctx context.Context) error {
	err := f.streamed(ctx)
	if st := &f.streams; err == nil && st.told != nil {
		st.told(st.spool.Size())
	}
	return err
}

func (f *follower) streamed(ctx context.Context) error {
	m, st := &f.message, &f.streams
	switch {
	case st.spool == nil:
		return fault.Corrupted("the log has a message of kind %q, which was not asked for", m.Kind)
	case f.build.Open:
		return fault.Corrupted("the log has a message of kind %q inside transaction %d", m.Kind, f.build.Current.XID)
	case m.Kind != pgoutput.StreamStop && m.XID == 0:
		return fault.Corrupted("the log has a message of kind %q without a transaction", m.Kind)
	}
	switch m.Kind {
	case pgoutput.StreamStart:
		if st.open[m.XID] == m.First {
			return fault.Corrupted("the log has a block of transaction %d, as the first one: %v, but has begun it: %v", m.XID, m.First, st.open[m.XID])
		}
		if st.open == nil {
			st.open = map[uint32]bool{}
		}
		st.xid, st.open[m.XID] = m.XID, true
	case pgoutput.StreamStop:
		if st.xid == 0 {
			return fault.Corrupted("the log ends a block of an open transaction that it has not begun")
		}
		st.xid = 0
		fault.KillPoint("block spooled")
	case pgoutput.StreamAbort:
		if m.SubXID != m.XID {
			return st.spool.Back(uint64(m.XID), uint64(m.SubXID))
		}
		delete(st.open, m.XID)
		return st.spool.Drop(uint64(m.XID))
	case pgoutput.StreamCommit:
		if !st.open[m.XID] || m.End <= m.LSN {
			return fault.Corrupted("the log commits transaction %d from %s to %s; has it begun: %v", m.XID, change.LSN(m.LSN), change.LSN(m.End), st.open[m.XID])
		}
		xid := m.XID
		if err := f.unspool(ctx, *m); err != nil {
			return err
		}
		delete(st.open, xid)
		return st.spool.Drop(uint64(xid))
	}
	return nil
}

// spoolMessage takes a message inside a block.
func (f *follower) spoolMessage(data []byte) error {
	st := &f.streams
	xid, body, err := pgoutput.Streamed(data)
	if err != nil {
		return fault.Corrupted("read transaction %d, which is open, after %s: %v", st.xid, f.build.End, err)
	}
	var behind []byte
	switch pgoutput.Kind(data[0]) {
	case pgoutput.Origin, pgoutput.Logical:
		return nil
	case pgoutput.Relation:
		f.layouts.arrivals++
		behind = binary.BigEndian.AppendUint64(st.arrival[:0], f.layouts.arrivals)
	}
	if xid != st.xid {
		st.spool.Mark(uint64(st.xid), uint64(xid))
	}
	return st.spool.Append(uint64(st.xid), data[:1], body, behind)
}

// unspool makes a streamed transaction that commit ends into changes.
func (f *follower) unspool(ctx context.Context, commit pgoutput.Message) error {
	records, err := f.streams.spool.Read(uint64(commit.XID))
	if err != nil {
		return err
	}
	all := f.layouts
	own := map[uint32]*layout{}
	f.layouts = layouts{known: own, names: all.names}
	f.build.Begin(change.LSN(commit.LSN), commit.XID, pgoutput.Instant(commit.Time))
	f.committed = commit.Time
	for {
		data, err := records.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		var arrival uint64
		if pgoutput.Kind(data[0]) == pgoutput.Relation {
			n := len(data) - len(f.streams.arrival)
			arrival = binary.BigEndian.Uint64(data[n:])
			data = data[:n]
		}
		if err := f.parse(data); err != nil {
			return err
		}
		m := &f.message
		if m.Kind == pgoutput.Relation && own[m.Layout.ID] == nil {
			if known := all.known[m.Layout.ID]; known != nil { // it is the same table if it says the same
				own[m.Layout.ID] = &layout{raw: known.raw, table: known.table, arrival: arrival}
			}
		}
		if err := f.content(ctx, data, arrival); err != nil {
			return err
		}
		if err := f.portion(ctx); err != nil {
			return err
		}
	}
	fault.KillPoint("taken from the spool")
	maps.DeleteFunc(own, func(id uint32, l *layout) bool {
		known := all.known[id]
		return known != nil && known.arrival > l.arrival
	})
	maps.Copy(all.known, own)
	all.last = nil
	f.layouts = all
	f.build.Commit(change.LSN(commit.End), "")
	return nil
}
