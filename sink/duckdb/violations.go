//go:build !noduckdb

package duckdb

import (
	"context"

	"tailrace/internal/change"
	"tailrace/sink"
)

// addViolations adds to what is kept. Of one expectation there is one row: the old one
// is replaced by a delete and an insert, as all bookkeeping is.
func (w *Writer) addViolations(ctx context.Context, c *conn, met []sink.Violation) error {
	const of = ofTarget + " AND flow = $4 AND expectation = $5 AND met = $6"
	table := w.bookTable("violations")
	for i := range met {
		v := &met[i]
		args := []any{w.cfg.Pipeline, v.Target.Schema, v.Target.Table, v.Flow, v.Expectation, v.Met}
		if err := w.keepViolation(ctx, c, args); err != nil {
			return err
		}
		before, err := c.number(ctx, "SELECT coalesce(sum(events), 0)::BIGINT FROM "+table+of, args...)
		if err != nil {
			return err
		}
		if _, err := c.run(ctx, "DELETE FROM "+table+of, args...); err != nil {
			return err
		}
		if _, err := c.run(ctx, "INSERT INTO "+table+" VALUES ($1, $2, $3, $4, $5, $6, $7)", append(args, before+v.Events)...); err != nil {
			return err
		}
	}
	return nil
}

// Violations implements sink.Memory.
func (w *Writer) Violations(ctx context.Context) (list []sink.Violation, err error) {
	err = w.readBook(ctx, "violations", func(c *conn) error {
		r, err := c.query(ctx, "SELECT target_schema, target_table, flow, expectation, met, events FROM "+w.bookTable("violations")+" WHERE pipeline = $1 ORDER BY ALL", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			for row := range r.size {
				text := func(i int) string { return string(r.cols[i].bytes(row)) }
				list = append(list, sink.Violation{Target: change.Name{Schema: text(0), Table: text(1)}, Flow: text(2), Expectation: text(3), Met: text(4), Events: r.cols[5].int64(row)})
			}
		}
		return r.err
	})
	return list, w.explain("read what violated expectations", err)
}

// SetAside implements sink.Memory.
func (w *Writer) SetAside(ctx context.Context, events []sink.Aside, met []sink.Violation) error {
	return w.amend(ctx, "set events aside", func(c *conn) error { return w.setAside(ctx, c, events, met) })
}

// Afresh implements sink.Memory.
func (w *Writer) Afresh(ctx context.Context, target change.Name, flow string) error {
	return w.amend(ctx, "begin a flow's quarantine afresh", func(c *conn) error { return w.afresh(ctx, c, target, flow) })
}

func (w *Writer) afresh(ctx context.Context, c *conn, target change.Name, flow string) error {
	if _, err := w.resolveWhere(ctx, c, "target_schema = $2 AND target_table = $3 AND flow = $4", target.Schema, target.Table, flow); err != nil {
		return err
	}
	return w.forget(ctx, c, "violations", "target_schema = $2 AND target_table = $3 AND flow = $4", target.Schema, target.Table, flow)
}
