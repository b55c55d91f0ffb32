//go:build !noduckdb

package duckdb

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// layout is what a table of what is kept was made of. Its notes' columns c0, c1, ... are
// Columns, in this order.
type layout struct {
	Kind      int      `json:"kind"` // scd.Kind
	Sequenced bool     `json:"sequenced"`
	Keys      []string `json:"keys,omitempty"`
	Columns   []string `json:"columns"`
	Types     []string `json:"types"`
	Bound     string   `json:"bound,omitempty"` // type of start and end
}

func (s *shape) layout() (l layout) {
	l.Kind, l.Sequenced = int(s.target.Kind), s.target.Sequenced
	for i := range s.cols {
		l.Columns, l.Types = append(l.Columns, s.cols[i].name), append(l.Types, s.cols[i].typ.String())
	}
	for _, k := range s.keys {
		l.Keys = append(l.Keys, s.cols[k].name)
	}
	if s.target.Kind == scd.Type2 {
		l.Bound = startColumnOf(s.target).typ.String()
	}
	return l
}

// alike reports whether rows mean the same: what identifies them.
func (l *layout) alike(o *layout) bool {
	return l.Kind == o.Kind && l.Sequenced == o.Sequenced && slices.Equal(l.Keys, o.Keys)
}

func (l *layout) equal(o *layout) bool {
	return l.alike(o) && l.Bound == o.Bound && slices.Equal(l.Columns, o.Columns) && slices.Equal(l.Types, o.Types)
}

func readLayout(text string) (l layout, err error) {
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return l, fault.Corrupted("read the layout of what is kept: %v", err)
	}
	return l, nil
}

// keptTable is a table of what is kept of a target under a number. There are several
// where the target's layout has changed since the point: the first one that has a row
// counts.
type keptTable struct {
	number, part  int64
	rows, records string // plain names; records: of a sequenced target
	layout        layout
	head          sequenced.Head // as it was when the table was made
	counts        sequenced.Counts
}

// keeper is what is kept of a target under the newest number.
type keeper struct {
	w      *Writer
	tables []keptTable
	fits   *shape // the last one; nil: not known
}

// notes are those that the target's rows are kept in.
func (k *keeper) notes(s *shape) *notes {
	last := len(k.tables) - 1
	n := &notes{shape: s, table: k.w.bookTable(k.tables[last].rows)}
	for i := range last {
		n.older = append(n.older, k.w.bookTable(k.tables[i].rows))
	}
	return n
}

// keeperOf finds, or makes, the table of what is kept of a target under the number of the
// open window.
func (a *applier) keeperOf(ctx context.Context, s *shape) (*keeper, error) {
	if a.keepers == nil {
		tables, err := a.w.keptTables(ctx, a.conn, a.w.cfg.Pipeline, fmt.Sprintf("number = %d", a.window.number))
		if err != nil {
			return nil, err
		}
		a.keepers = map[change.Name]*keeper{}
		for name, list := range tables {
			a.keepers[name] = &keeper{w: a.w, tables: list}
		}
	}
	name := storedName(s.target.Name)
	k := a.keepers[name]
	if k == nil {
		k = &keeper{w: a.w}
		a.keepers[name] = k
	}
	if k.fits == s {
		return k, nil
	}
	now := s.layout()
	if last := len(k.tables) - 1; last < 0 || !k.tables[last].layout.equal(&now) {
		if last >= 0 && !k.tables[last].layout.alike(&now) {
			if err := a.w.barrier(ctx, a.conn, s.target.Name, "its key or its kind was another"); err != nil {
				return nil, err
			}
			k.tables = nil // of no use any more
		}
		if err := a.keepIn(ctx, k, s, now); err != nil {
			return nil, err
		}
	}
	k.fits = s
	return k, nil
}

// keepIn makes the next table of what is kept of a target.
func (a *applier) keepIn(ctx context.Context, k *keeper, s *shape, now layout) error {
	w, n := a.w, s.target.Name
	part, err := a.conn.number(ctx, "SELECT coalesce(max(part), 0) + 1 FROM "+w.bookTable("undo")+ofTarget+" AND number = $4", w.cfg.Pipeline, schemaOf(n), n.Table, a.window.number)
	if err != nil {
		return err
	}
	t := keptTable{number: a.window.number, part: part, layout: now}
	t.rows = fmt.Sprintf("kept_%d_%d_%s", t.number, t.part, ownName(w.cfg.Pipeline, n))
	create := []string{(&notes{shape: s, table: w.bookTable(t.rows)}).create()}
	if s.target.Sequenced {
		t.records = fmt.Sprintf("kept_records_%d_%d_%s", t.number, t.part, ownName(w.cfg.Pipeline, n))
		create = append(create, fmt.Sprintf("CREATE TABLE %s AS SELECT *, false AS was FROM %s LIMIT 0", w.bookTable(t.records), s.memory))
		if t.head, err = w.readHead(ctx, a.conn, w.cfg.Pipeline, n); err != nil {
			return err
		}
		if t.counts, err = w.readCounts(ctx, a.conn, w.cfg.Pipeline, n); err != nil {
			return err
		}
	}
	for _, sql := range create {
		if _, err := a.conn.exec(ctx, sql); err != nil {
			return err
		}
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	args := []any{w.cfg.Pipeline, t.number, t.part, schemaOf(n), n.Table, t.rows, t.records, string(text)}
	for _, of := range countsOf(&t.counts) {
		args = append(args, int64(*of))
	}
	_, err = a.conn.run(ctx, fmt.Sprintf("INSERT INTO %s VALUES ($1, $2, $3, $4, $5, $6, $7, $8, '', %s, %s, %s, $9, $10, $11, $12, $13, $14, $15)", w.bookTable("undo"),
		bytesLiteral(t.head.Truncated.Seq), bytesLiteral(t.head.Truncated.At), bytesLiteral(t.head.Horizon)), args...)
	k.tables = append(k.tables, t)
	return err
}

// storedName is a target's name as the bookkeeping of what is kept has it.
func storedName(n change.Name) change.Name {
	return change.Name{Schema: schemaOf(n), Table: n.Table}
}

// keptTables reads the tables of what is kept of a pipeline's targets, in their order,
// where a condition on table undo holds.
func (w *Writer) keptTables(ctx context.Context, c *conn, pipeline, condition string) (map[change.Name][]keptTable, error) {
	r, err := c.query(ctx, fmt.Sprintf(`SELECT target_schema, target_table, number, part, kept, records, layout, truncated_seq, truncated_place, horizon, duplicates, late, ties, truncated, beyond, unknown, forgotten
FROM %s WHERE pipeline = $1 AND barrier = '' AND %s ORDER BY number, part`, w.bookTable("undo"), condition), pipeline)
	if err != nil {
		return nil, err
	}
	defer r.close()
	tables := map[change.Name][]keptTable{}
	for r.next() {
		for row := range r.size {
			text := func(i int) string { return string(r.cols[i].bytes(row)) }
			t := keptTable{number: r.cols[2].int64(row), part: r.cols[3].int64(row), rows: text(4), records: text(5)}
			if t.layout, err = readLayout(text(6)); err != nil {
				return nil, err
			}
			t.head.Truncated.Seq, t.head.Truncated.At, t.head.Horizon = r.cols[7].blob(row), r.cols[8].blob(row), r.cols[9].blob(row)
			for i, to := range countsOf(&t.counts) {
				*to = int(r.cols[10+i].int64(row))
			}
			name := change.Name{Schema: text(0), Table: text(1)}
			tables[name] = append(tables[name], t)
		}
	}
	return tables, r.err
}

// barrier notes that a target was changed in a way that is not kept; why is a sentence
// without its end. The transaction on c holds pointing, or is a batch.
func (w *Writer) barrier(ctx context.Context, c *conn, n change.Name, why string) error {
	open := w.window.Load()
	if open == nil {
		return nil
	}
	_, err := c.run(ctx, "INSERT INTO "+w.bookTable("undo")+" (pipeline, number, part, target_schema, target_table, kept, records, barrier) VALUES ($1, $2, 0, $3, $4, '', '', $5)",
		w.cfg.Pipeline, open.number, schemaOf(n), n.Table, why)
	return err
}

// barriers reads why targets cannot be restored to a point, of each the newest reason.
func (w *Writer) barriers(ctx context.Context, c *conn, pipeline string, to int64) (map[change.Name]string, error) {
	list := map[change.Name]string{}
	err := c.each(ctx, func(cells []*string) error {
		list[change.Name{Schema: *cells[0], Table: *cells[1]}] = *cells[2]
		return nil
	}, "SELECT target_schema, target_table, barrier FROM "+w.bookTable("undo")+" WHERE pipeline = $1 AND number >= $2 AND barrier <> '' ORDER BY number", pipeline, to)
	return list, err
}

// anew runs a transaction that changes a target in a way that is not kept.
func (w *Writer) anew(ctx context.Context, c *conn, n change.Name, why string, fn func() error) error {
	noting := false
	defer func() {
		if noting {
			w.pointing.RUnlock()
		}
	}()
	return inTransaction(ctx, c, func() error {
		if err := fn(); err != nil {
			return err
		}
		w.pointing.RLock() // until it has committed: the number is the newest one then
		noting = true
		return w.barrier(ctx, c, n, why)
	})
}
