//go:build !noduckdb

package duckdb

import (
	"bytes"
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// remember stores what a sequenced target remembers from a batch, before its
// rounds: what a truncate forgets, what is removed, what is put. settle stores the
// rest, after them.
func (a *applier) remember(ctx context.Context, s *shape, work *sequenced.Work) error {
	if err := a.keepRecords(ctx, s, work); err != nil {
		return err
	}
	if !work.TruncateBelow.IsZero() {
		if err := a.forgetBelow(ctx, s, work.TruncateBelow); err != nil {
			return err
		}
	}
	ids := make([]int64, 0, len(work.Remove)+len(work.Put))
	keys := make([]int64, 0, cap(ids))
	note := func(id sequenced.RecordID) {
		h, i := hashes(id)
		keys, ids = append(keys, h), append(ids, i)
	}
	for i := range work.Remove {
		note(work.Remove[i])
	}
	for i := range work.Put {
		note(work.Put[i].ID())
	}
	if err := a.removeRecords(ctx, s, work, ids); err != nil || len(work.Put) == 0 {
		return err
	}
	keys, ids = keys[len(work.Remove):], ids[len(work.Remove):]
	ap, err := a.conn.newAppender(a.w.catalog, bookSchema, memoryName(a.w.cfg.Pipeline, s.target.Name), recordColumns(), true)
	if err != nil {
		return err
	}
	defer ap.discard()
	for i := range work.Put {
		if err := ap.record(&work.Put[i], keys[i], ids[i]); err != nil {
			return err
		}
	}
	_, err = ap.finish(ctx)
	return err
}

// removeRecords deletes what the batch removes, and what it is about to replace.
// Most of what a history puts is new; then nothing is found, and one scan of one
// column is all.
func (a *applier) removeRecords(ctx context.Context, s *shape, work *sequenced.Work, hashes []int64) error {
	removed := len(work.Remove)
	id := func(n int) sequenced.RecordID {
		if n < removed {
			return work.Remove[n]
		}
		return work.Put[n-removed].ID()
	}
	if len(hashes) == 0 {
		return nil
	}
	err := stageNumbers(ctx, a.conn, "gone", "i", len(hashes), func(n int) (int64, int64) { return int64(n), hashes[n] })
	if err != nil {
		return err
	}
	if _, err := a.conn.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE found AS SELECT t.rowid AS rid, q.n FROM %s AS t JOIN %s AS q ON t.i = q.i", s.memory, stageName("gone"))); err != nil {
		return err
	}
	found, err := a.conn.number(ctx, "SELECT count(*) FROM "+stageName("found"))
	if err != nil || found == 0 {
		return err
	}
	other, err := a.otherRecords(ctx, s, id)
	if err != nil {
		return err
	}
	for _, p := range other { // a hash that two records share
		if _, err := a.conn.exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE rid = %d AND n = %d", stageName("found"), p.rid, p.n)); err != nil {
			return err
		}
	}
	_, err = a.conn.exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE rowid IN (SELECT rid FROM %s)", s.memory, stageName("found")))
	return err
}

// otherRecords returns what was found by its hash alone.
func (a *applier) otherRecords(ctx context.Context, s *shape, id func(n int) sequenced.RecordID) (other []pick, err error) {
	r, err := a.conn.query(ctx, fmt.Sprintf("SELECT f.n, f.rid, t.key, t.seq, t.place FROM %s AS t JOIN %s AS f ON t.rowid = f.rid", s.memory, stageName("found")))
	if err != nil {
		return nil, err
	}
	defer r.close()
	for r.next() {
		for row := range r.size {
			n := r.cols[0].int64(row)
			want := id(int(n))
			if !bytes.Equal(r.cols[2].bytes(row), want.Key) || !bytes.Equal(r.cols[3].bytes(row), want.Seq) || !bytes.Equal(r.cols[4].bytes(row), want.At) {
				other = append(other, pick{n, r.cols[1].int64(row)})
			}
		}
	}
	return other, r.err
}

// orphanChunk is how many keys' rows a truncate removes at once: their stage stays
// small, however many keys there are.
const orphanChunk = 10_000

// forgetBelow does a truncate's first half: it forgets every record at p or below,
// and removes the visible rows of keys of which no record is left.
func (a *applier) forgetBelow(ctx context.Context, s *shape, p sequenced.Place) error {
	if _, err := a.conn.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE below AS SELECT DISTINCT h, key FROM %s WHERE %s", s.memory, atOrBelow(p))); err != nil {
		return err
	}
	if _, err := a.conn.exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE %s", s.memory, atOrBelow(p))); err != nil {
		return err
	}
	if s.target.Kind != scd.Type1 {
		return nil
	}
	orphans := stageName("orphans")
	if _, err := a.conn.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE orphans AS SELECT row_number() OVER () AS n, b.key FROM %s AS b WHERE NOT EXISTS (SELECT 1 FROM %s AS t WHERE t.h = b.h AND t.key = b.key)",
		stageName("below"), s.memory)); err != nil {
		return err
	}
	total, err := a.conn.number(ctx, "SELECT count(*) FROM "+orphans)
	if err != nil {
		return err
	}
	for from := int64(0); from < total; from += orphanChunk {
		keys, err := a.conn.keys(ctx, fmt.Sprintf("SELECT key FROM %s WHERE n > %d AND n <= %d", orphans, from, from+orphanChunk))
		if err != nil {
			return err
		}
		if err := a.type1(ctx, s, &scd.Round{Deletes: keys}, false); err != nil {
			return err
		}
	}
	for _, name := range []string{orphans, stageName("below")} { // they may be large
		if _, err := a.conn.exec(ctx, "DROP TABLE "+name); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) keys(ctx context.Context, query string) (list []scd.Key, err error) {
	r, err := c.query(ctx, query)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var keep scd.Arena
	for r.next() {
		for row := range r.size {
			list = append(list, kept(&keep, r.cols[0].bytes(row)))
		}
	}
	return list, r.err
}

// settle stores the head and the counts and forgets old tombstones, at the end of a
// batch. The horizon never goes back, whatever the head says.
func (a *applier) settle(ctx context.Context, s *shape, work *sequenced.Work) error {
	var horizon []byte
	counts := work.Counts.Kept()
	if work.ForgetBefore != 0 {
		old := fmt.Sprintf(" FROM %s WHERE tombstone AND time < %d", s.memory, work.ForgetBefore)
		var err error
		if horizon, err = a.conn.blob(ctx, "SELECT max(seq)"+old); err != nil {
			return err
		}
		if horizon != nil {
			if err := a.keepRecordsWhere(ctx, s, fmt.Sprintf("tombstone AND time < %d", work.ForgetBefore)); err != nil {
				return err
			}
			n, err := a.conn.run(ctx, "DELETE"+old)
			if err != nil {
				return err
			}
			counts.Forgotten += int(n)
		}
	}
	if err := a.count(ctx, s.target.Name, counts); err != nil {
		return err
	}
	if !work.HeadChanged && horizon == nil {
		return nil
	}
	head, err := a.w.readHead(ctx, a.conn, a.w.cfg.Pipeline, s.target.Name)
	if err != nil {
		return err
	}
	if bytes.Compare(horizon, head.Horizon) > 0 {
		head.Horizon = horizon
	}
	if work.HeadChanged {
		head.Truncated = work.Head.Truncated
		if bytes.Compare(work.Head.Horizon, head.Horizon) > 0 {
			head.Horizon = work.Head.Horizon
		}
	}
	return a.w.replaceHead(ctx, a.conn, s.target.Name, head)
}

const ofTarget = " WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3"

// count adds to what was counted of a target.
func (a *applier) count(ctx context.Context, n change.Name, more sequenced.Counts) error {
	if more == (sequenced.Counts{}) {
		return nil
	}
	sum, err := a.w.readCounts(ctx, a.conn, a.w.cfg.Pipeline, n)
	if err != nil {
		return err
	}
	sum.Add(more)
	return a.w.replaceCounts(ctx, a.conn, n, sum)
}

func (w *Writer) replaceCounts(ctx context.Context, c *conn, n change.Name, sum sequenced.Counts) error {
	if err := w.forgetCounts(ctx, c, n); err != nil || sum == (sequenced.Counts{}) {
		return err
	}
	args := []any{w.cfg.Pipeline, schemaOf(n), n.Table}
	for _, of := range countsOf(&sum) {
		args = append(args, int64(*of))
	}
	_, err := c.run(ctx, "INSERT INTO "+w.bookTable("counts")+" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)", args...)
	return err
}

// countsOf are counts in the order of their columns.
func countsOf(c *sequenced.Counts) []*int {
	return []*int{&c.Duplicates, &c.Late, &c.Ties, &c.Truncated, &c.Beyond, &c.Unknown, &c.Forgotten}
}

func (w *Writer) forgetCounts(ctx context.Context, c *conn, n change.Name) error {
	_, err := c.run(ctx, "DELETE FROM "+w.bookTable("counts")+ofTarget, w.cfg.Pipeline, schemaOf(n), n.Table)
	return err
}

func (w *Writer) readCounts(ctx context.Context, c *conn, pipeline string, n change.Name) (sum sequenced.Counts, err error) {
	r, err := c.query(ctx, "SELECT duplicates, late, ties, truncated, beyond, unknown, forgotten FROM "+w.bookTable("counts")+ofTarget, pipeline, schemaOf(n), n.Table)
	if err != nil {
		return sum, err
	}
	defer r.close()
	for r.next() {
		for i, to := range countsOf(&sum) {
			*to = int(r.cols[i].int64(0))
		}
	}
	return sum, r.err
}

// Counted reads what was counted of a target's events.
func (w *Writer) Counted(ctx context.Context, t *scd.Target) (sum sequenced.Counts, err error) {
	err = w.readBook(ctx, "counts", func(c *conn) error {
		sum, err = w.readCounts(ctx, c, w.cfg.Pipeline, t.Name)
		return err
	})
	return sum, w.explain("read what was counted of "+t.Name.String(), err)
}
