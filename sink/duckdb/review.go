//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// sortedBytes is how much of what is remembered is sorted at once: small beside the
// engine's least memory limit, large beside a scan of the column of hashes, which each
// part costs.
const sortedBytes = 32 << 20

// Records reads every record of a target, in parts by the keys' hashes.
func (w *Writer) Records(ctx context.Context, t *scd.Target, fn func(sequenced.Record) error) error {
	name := memoryName(w.cfg.Pipeline, t.Name)
	err := w.readBook(ctx, name, func(c *conn) error {
		table := w.memoryTable(t.Name)
		size, err := c.number(ctx, "SELECT CAST(coalesce(sum(octet_length(key) + octet_length(seq) + octet_length(place) + octet_length(body)), 0) AS BIGINT) FROM "+table)
		if err != nil {
			return err
		}
		parts := 1 + size/sortedBytes
		var keep scd.Arena
		for part := range parts {
			r, err := c.query(ctx, fmt.Sprintf("SELECT key, seq, place, body, tombstone, time FROM %s WHERE octet_length(key) > 0 AND (h %% %d + %[2]d) %% %[2]d = %d ORDER BY key, seq, place", table, parts, part))
			if err != nil {
				return err
			}
			for r.next() {
				for row := range r.size {
					bytes := func(i int) []byte { return kept(&keep, r.cols[i].bytes(row)) }
					rec := sequenced.Record{Key: bytes(0), Seq: bytes(1), At: bytes(2), Body: bytes(3), Tombstone: r.cols[4].bool(row), Time: r.cols[5].int64(row)}
					if err := fn(rec); err != nil {
						r.close()
						return err
					}
				}
			}
			r.close()
			if r.err != nil {
				return r.err
			}
		}
		return nil
	})
	return w.explain("read what is remembered of "+t.Name.String(), err)
}

// Rows reads every row of a sequenced target.
func (w *Writer) Rows(ctx context.Context, t *scd.Target, fn func(row change.Row) error) error {
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	if c == nil {
		return fault.Refuse("run the pipeline first", "target %s: there is no file %s", t.Name, w.cfg.Path)
	}
	defer c.close()
	s, err := w.shape(ctx, t)
	if err != nil {
		return err
	}
	list := s.names()
	if t.Kind == scd.Type2 {
		list += ", " + startColumn + ", " + endColumn
	}
	return w.explain("read target "+t.Name.String(), scanRows(ctx, c, "SELECT "+list+" FROM "+s.name, 0, func(_, row []byte) error { return fn(row) }))
}
