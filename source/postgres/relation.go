package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source/postgres/pgoutput"
)

// layouts are the relations that the log has described on one connection, to all
// or to one transaction.
type layouts struct {
	known    map[uint32]*layout
	last     *layout           // the relation of the last row
	names    map[uint32]string // users' types that the log has named, for those gone from the catalogue
	arrivals uint64            // Relation messages so far, also of transactions that are open
}

// layout is a relation as the log describes it.
type layout struct {
	raw     []byte // the Relation message, to see whether another says anything new
	table   *change.Table
	arrival uint64 // of the newest message that said so
}

// find returns the table of a row and proves the width of its images.
func (l *layouts) find(m *pgoutput.Message) (*change.Table, error) {
	if l.last == nil || l.last.table.ID != m.Rel {
		known := l.known[m.Rel]
		if known == nil {
			return nil, fault.Corrupted("the log has a row of relation %d without having described it", m.Rel)
		}
		l.last = known
	}
	t := l.last.table
	if m.New != nil && m.NewCols != len(t.Columns) || m.Old != nil && m.OldCols != len(t.Columns) {
		return nil, fault.Corrupted("the log has a row of %d and %d columns for table %s, which has %d", m.OldCols, m.NewCols, t.Name, len(t.Columns))
	}
	return t, nil
}

// describePatience is how long the log waits for the catalogue session before the
// failure is given to the caller, who starts anew from the mark. No change is
// skipped either way.
const describePatience = 60 * time.Second

// describe takes in a Relation message. The log repeats them freely; only one that
// differs makes a new *change.Table. What the log does not say (how a type is
// called and made, what may be null) comes from the catalogue as it is now.
func (f *follower) describe(ctx context.Context, raw []byte, m *pgoutput.Layout, arrival uint64) error {
	if known := f.layouts.known[m.ID]; known != nil && bytes.Equal(known.raw, raw) {
		known.arrival = arrival
		return nil
	}
	deadline := time.Now().Add(describePatience)
	wait := 50 * time.Millisecond
	for {
		t, err := f.source.tableOf(ctx, m, f.layouts.names)
		if err == nil {
			l := &layout{raw: bytes.Clone(raw), table: t, arrival: arrival}
			f.layouts.known[m.ID], f.layouts.last = l, l
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if fault.KindOf(err) != fault.Transient || time.Now().After(deadline) {
			return fmt.Errorf("look up table %s.%s in the catalogue: %w", m.Schema, m.Name, err)
		}
		f.source.log.Warn("cannot look up a table's types: the log waits", "table", m.Schema+"."+m.Name, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// tableOf completes a layout from the catalogue.
func (s *Source) tableOf(ctx context.Context, m *pgoutput.Layout, typeNames map[uint32]string) (*change.Table, error) {
	keys := make([]typeKey, len(m.Columns))
	for i, c := range m.Columns {
		keys[i] = typeKey{c.TypeID, c.Modifier}
	}
	var types map[typeKey]change.Type
	notNull := map[string]bool{}
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if types, err = s.types.resolve(ctx, conn, keys); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, "SELECT attname FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND attnotnull AND NOT attisdropped", m.ID)
		if err != nil {
			return err
		}
		var name string
		_, err = pgx.ForEachRow(rows, []any{&name}, func() error {
			notNull[name] = true
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	t := &change.Table{ID: m.ID, Name: change.Name{Schema: m.Schema, Table: m.Name}, Identity: m.Identity,
		Columns: make([]change.Column, len(m.Columns))}
	for i, c := range m.Columns {
		typ := types[keys[i]]
		if typ.Name == "" { // dropped since
			typ.Name = typeNames[c.TypeID]
		}
		t.Columns[i] = change.Column{Name: c.Name, Type: typ, Key: c.Key, Nullable: !notNull[c.Name]}
	}
	return t, nil
}

// complete fills what an update did not send because it did not change (large
// values stored out of line) from the whole old row, which identity FULL logs with
// them. Both rows are proven to have the same number of columns.
func complete(row, old change.Row) change.Row {
	full := make(change.Row, 0, len(row)+len(old))
	for len(row) > 0 {
		var v, was change.Value
		var err1, err2 error
		v, row, err1 = row.Next()
		was, old, err2 = old.Next()
		if err1 != nil || err2 != nil {
			return full
		}
		if v.State == change.Absent {
			v = was
		}
		full = full.Append(v)
	}
	return full
}
