//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"
)

// Of the bookkeeping are kept: files, events in quarantine and violations, each in one
// table of the same columns behind the number and was, whether there was such a row.

// identities are the columns that tell the rows of a pipeline apart, by table.
var identities = map[string][]string{
	"files":      {"relation_schema", "relation_table", "path"},
	"quarantine": {"id"},
	"violations": {"target_schema", "target_table", "flow", "expectation", "met"},
}

// unkept is the condition that nothing is kept of a row yet, under a number.
func (w *Writer) unkept(table, row string, number int64) string {
	return fmt.Sprintf("NOT EXISTS (SELECT 1 FROM %s AS u WHERE u.number = %d AND u.pipeline = $1 AND %s)",
		w.bookTable("undo_"+table), number, matched("u.", identities[table], row, identities[table], false))
}

// keepBook keeps rows of a table, before they are changed, where a condition with
// arguments from $2 on holds.
func (w *Writer) keepBook(ctx context.Context, c *conn, table, condition string, args ...any) error {
	open := w.window.Load()
	if open == nil {
		return nil
	}
	_, err := c.run(ctx, fmt.Sprintf("INSERT INTO %s SELECT %d, true, t.* FROM %s AS t WHERE pipeline = $1 AND %s AND %s",
		w.bookTable("undo_"+table), open.number, w.bookTable(table), condition, w.unkept(table, "t.", open.number)), append([]any{w.cfg.Pipeline}, args...)...)
	return err
}

// keepTaken keeps what was known of the files in a stage.
func (w *Writer) keepTaken(ctx context.Context, c *conn, taken string) error {
	open := w.window.Load()
	if open == nil {
		return nil
	}
	_, err := c.run(ctx, fmt.Sprintf(`INSERT INTO %s SELECT DISTINCT %d, t.path IS NOT NULL, $1, q.relation_schema, q.relation_table, q.path, t.size, t.modified, t.checksum, t.events
FROM %s AS q LEFT JOIN (SELECT * FROM %s WHERE pipeline = $1) AS t ON %s WHERE %s`,
		w.bookTable("undo_files"), open.number, taken, w.bookTable("files"), matched("t.", identities["files"], "q.", identities["files"], false), w.unkept("files", "q.", open.number)), w.cfg.Pipeline)
	return err
}

// lastAside is the newest number of an event in quarantine, also of one that is not there
// any more but kept.
func (w *Writer) lastAside(ctx context.Context, c *conn) (int64, error) {
	of := "SELECT id FROM " + w.bookTable("quarantine") + " WHERE pipeline = $1"
	if w.window.Load() != nil {
		of += " UNION ALL SELECT id FROM " + w.bookTable("undo_quarantine") + " WHERE pipeline = $1"
	}
	return c.number(ctx, "SELECT coalesce(max(id), 0) FROM ("+of+")", w.cfg.Pipeline)
}

// keepAside keeps that the events above a number were not in quarantine.
func (w *Writer) keepAside(ctx context.Context, c *conn, above int64) error {
	open := w.window.Load()
	if open == nil {
		return nil
	}
	_, err := c.run(ctx, fmt.Sprintf("INSERT INTO %s (number, was, pipeline, id, target_schema, target_table) SELECT %d, false, pipeline, id, target_schema, target_table FROM %s WHERE pipeline = $1 AND id > %d",
		w.bookTable("undo_quarantine"), open.number, w.bookTable("quarantine"), above), w.cfg.Pipeline)
	return err
}

// keepViolation keeps what was counted of a violation, whose identity args are, behind the
// pipeline.
func (w *Writer) keepViolation(ctx context.Context, c *conn, args []any) error {
	open := w.window.Load()
	if open == nil {
		return nil
	}
	_, err := c.run(ctx, fmt.Sprintf(`INSERT INTO %s SELECT %d, t.events IS NOT NULL, $1, q.*, t.events
FROM (SELECT $2 AS target_schema, $3 AS target_table, $4 AS flow, $5 AS expectation, $6 AS met) AS q LEFT JOIN (SELECT * FROM %s WHERE pipeline = $1) AS t ON %s WHERE %s`,
		w.bookTable("undo_violations"), open.number, w.bookTable("violations"), matched("t.", identities["violations"], "q.", identities["violations"], false), w.unkept("violations", "q.", open.number)), args...)
	return err
}

// restoreBook makes rows of a table what they were at a point, where a condition on what
// is kept of them holds.
func (w *Writer) restoreBook(ctx context.Context, c *conn, table, condition string, to int64) error {
	id := strings.Join(identities[table], ", ")
	kept, back := w.bookTable("undo_"+table), stageName("back")
	of := fmt.Sprintf(" FROM %s WHERE pipeline = $1 AND number >= %d AND %s", kept, to, condition)
	for _, sql := range []string{
		fmt.Sprintf("CREATE OR REPLACE TEMP TABLE back AS SELECT *%s AND (number, %s) IN (SELECT (min(number), %[2]s)%[1]s GROUP BY %[2]s)", of, id),
		fmt.Sprintf("DELETE FROM %s AS t USING %s AS q WHERE t.pipeline = $1 AND %s", w.bookTable(table), back, matched("t.", identities[table], "q.", identities[table], false)),
		fmt.Sprintf("INSERT INTO %s SELECT * EXCLUDE (number, was) FROM %s WHERE was AND pipeline = $1", w.bookTable(table), back),
		"DELETE" + of,
	} {
		if _, err := c.run(ctx, sql, w.cfg.Pipeline); err != nil {
			return err
		}
	}
	return nil
}
