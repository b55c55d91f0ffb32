//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"

	"tailrace/scd/sequenced"
)

// Of what is remembered the records are kept, by their identity, in tables of the same
// columns and one more: was, whether there was such a record. As everywhere with
// records, they are found by hash first, and compared as bytes then.

const isRecord = "%[1]s.i = %[2]s.i AND %[1]s.key = %[2]s.key AND %[1]s.seq = %[2]s.seq AND %[1]s.place = %[2]s.place"

// sameRecord is the condition that rows of two tables have one identity.
func sameRecord(a, b string) string { return fmt.Sprintf(isRecord, a, b) }

// keepRecords keeps the records that a batch's part puts, removes or, by a truncate,
// forgets, before it does.
func (a *applier) keepRecords(ctx context.Context, s *shape, work *sequenced.Work) error {
	if a.window == nil || work.Empty() {
		return nil
	}
	k, err := a.keeperOf(ctx, s)
	if err != nil {
		return err
	}
	if !work.TruncateBelow.IsZero() {
		if err := a.keepRecordsWhere(ctx, s, atOrBelow(work.TruncateBelow)); err != nil {
			return err
		}
	}
	if len(work.Remove)+len(work.Put) == 0 {
		return nil
	}
	if err := a.stageIdentities(ctx, work); err != nil {
		return err
	}
	for i := range k.tables {
		if _, err := a.meet(ctx, a.w.bookTable(k.tables[i].records), ""); err != nil {
			return err
		}
	}
	into := a.w.bookTable(k.tables[len(k.tables)-1].records)
	if _, err := a.meet(ctx, s.memory, into); err != nil {
		return err
	}
	_, err = a.conn.exec(ctx, fmt.Sprintf("INSERT INTO %s SELECT DISTINCT h, i, key, seq, place, ''::BLOB, false, 0, false FROM %s", into, stageName("keeping")))
	return err
}

// stageIdentities fills the table keeping with the records' identities and hashes.
func (a *applier) stageIdentities(ctx context.Context, work *sequenced.Work) error {
	ap, err := a.conn.newTemp(ctx, "keeping", own("h", asBigint), own("i", asBigint), own("key", asBlob), own("seq", asBlob), own("place", asBlob))
	if err != nil {
		return err
	}
	defer ap.discard()
	write := func(id sequenced.RecordID) error {
		h, i := hashes(id)
		put(ap, 0, h)
		put(ap, 1, i)
		ap.blob(2, id.Key)
		ap.blob(3, id.Seq)
		ap.blob(4, id.At)
		return ap.end()
	}
	for i := range work.Remove {
		if err := write(work.Remove[i]); err != nil {
			return err
		}
	}
	for i := range work.Put {
		if err := write(work.Put[i].ID()); err != nil {
			return err
		}
	}
	_, err = ap.finish(ctx)
	return err
}

// meet takes out of the table keeping what a table of records holds, and keeps the
// records themselves if into is not empty.
func (a *applier) meet(ctx context.Context, table, into string) (found bool, err error) {
	keeping, met := stageName("keeping"), stageName("met")
	if _, err := a.conn.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE met AS SELECT t.rowid AS rid, q.rowid AS n FROM %s AS t JOIN %s AS q ON t.i = q.i", table, keeping)); err != nil {
		return false, err
	}
	n, err := a.conn.number(ctx, "SELECT count(*) FROM "+met)
	if err != nil || n == 0 {
		return false, err
	}
	same := fmt.Sprintf(" FROM %s AS t JOIN %s AS m ON t.rowid = m.rid JOIN %s AS q ON q.rowid = m.n WHERE %s", table, met, keeping, sameRecord("t", "q"))
	if into != "" {
		if _, err := a.fetch(ctx, "INSERT INTO "+into+" SELECT DISTINCT t.*, true"+same); err != nil {
			return false, err
		}
	}
	_, err = a.fetch(ctx, "DELETE FROM "+keeping+" WHERE rowid IN (SELECT q.rowid"+same+")")
	return true, err
}

// keepRecordsWhere keeps the records for which a condition on them holds.
func (a *applier) keepRecordsWhere(ctx context.Context, s *shape, condition string) error {
	if a.window == nil {
		return nil
	}
	k, err := a.keeperOf(ctx, s)
	if err != nil {
		return err
	}
	parts := []string{condition}
	for i := range k.tables {
		parts = append(parts, fmt.Sprintf("NOT EXISTS (SELECT 1 FROM %s AS p WHERE %s)", a.w.bookTable(k.tables[i].records), sameRecord("p", "t")))
	}
	_, err = a.conn.exec(ctx, fmt.Sprintf("INSERT INTO %s SELECT t.*, true FROM %s AS t WHERE %s", a.w.bookTable(k.tables[len(k.tables)-1].records), s.memory, strings.Join(parts, " AND ")))
	return err
}

// gatherRecords makes the table records: what was remembered at the point whose number
// tables begin with, of each record that was touched since.
func (w *Writer) gatherRecords(ctx context.Context, c *conn, tables []keptTable) error {
	for i := range tables {
		kept, sql := w.bookTable(tables[i].records), "INSERT INTO "+stageName("records")+" SELECT p.* FROM %s AS p WHERE NOT EXISTS (SELECT 1 FROM "+stageName("records")+" AS q WHERE "+sameRecord("q", "p")+")"
		if i == 0 {
			sql = "CREATE OR REPLACE TEMP TABLE records AS SELECT * FROM %s"
		}
		if _, err := c.exec(ctx, fmt.Sprintf(sql, kept)); err != nil {
			return err
		}
	}
	return nil
}

// recordColumnList are a record's columns.
const recordColumnList = "h, i, key, seq, place, body, tombstone, time"

// restoreRecords makes what is remembered of a target what it was, with its head and its
// counts.
func (w *Writer) restoreRecords(ctx context.Context, c *conn, s *shape, tables []keptTable) error {
	if err := w.gatherRecords(ctx, c, tables); err != nil {
		return err
	}
	records := stageName("records")
	for _, sql := range []string{
		fmt.Sprintf("DELETE FROM %s AS t USING %s AS q WHERE %s", s.memory, records, sameRecord("t", "q")),
		fmt.Sprintf("INSERT INTO %s SELECT %s FROM %s WHERE was", s.memory, recordColumnList, records),
		"DROP TABLE " + records, // it may be large
	} {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := w.replaceHead(ctx, c, s.target.Name, tables[0].head); err != nil {
		return err
	}
	return w.replaceCounts(ctx, c, s.target.Name, tables[0].counts)
}
