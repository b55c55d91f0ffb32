//go:build !noduckdb

package duckdb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// What is remembered of a sequenced target is one table in our schema. It has no
// key and no index (an index must stay in memory, and costs each batch more than a
// scan saves). In their place stand two hashes, made by us: h of the key and i of
// the whole identity. A batch joins on one of them, one narrow column of the table
// against a stage of numbers, and only what that finds is read and compared byte by
// byte. So a batch costs one scan of eight bytes a record, whatever the keys and
// sequences look like; and a hash that two keys share costs time, never a record.
const memoryColumns = "h BIGINT NOT NULL, i BIGINT NOT NULL, key BLOB NOT NULL, seq BLOB NOT NULL, place BLOB NOT NULL, body BLOB NOT NULL, tombstone BOOLEAN NOT NULL, time BIGINT NOT NULL"

// recordColumns are memoryColumns as the appender needs them.
func recordColumns() []column {
	return []column{own("h", asBigint), own("i", asBigint), own("key", asBlob), own("seq", asBlob), own("place", asBlob), own("body", asBlob), own("tombstone", asBoolean), own("time", asBigint)}
}

var _ sink.Memory = (*Writer)(nil)

// The hash takes eight bytes at a time and then the length. It is stored, so it must
// be the same in every process and version.
const (
	hashStart = 14695981039346656037
	hashPrime = 0x9E3779B97F4A7C15 // odd: no bit is lost
)

func hashOn(h uint64, b []byte) uint64 {
	size := uint64(len(b))
	for ; len(b) >= 8; b = b[8:] {
		h = mixed(h ^ binary.LittleEndian.Uint64(b))
	}
	var last uint64
	for i, c := range b {
		last |= uint64(c) << (8 * i)
	}
	return mixed(mixed(h^last) ^ size)
}

func mixed(h uint64) uint64 {
	h *= hashPrime
	return h ^ h>>29
}

// hashes of a record's key and of its whole identity.
func hashes(id sequenced.RecordID) (h, i int64) {
	key := hashOn(hashStart, id.Key)
	return int64(key), int64(hashOn(hashOn(key, id.Seq), id.At))
}

// memoryName names the table of what is remembered of a target.
func memoryName(pipeline string, n change.Name) string { return "remembered_" + ownName(pipeline, n) }

// ownName ends the names of a target's tables in our schema: readable, and unique by a
// hash of pipeline and target.
func ownName(pipeline string, n change.Name) string {
	var b strings.Builder
	for _, r := range fold(n.Table) {
		if b.Len() >= 40 {
			break
		}
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('_')
		}
	}
	sum := sha256.Sum256([]byte(pipeline + "\x00" + schemaOf(n) + "\x00" + n.Table))
	return b.String() + "_" + hex.EncodeToString(sum[:8])
}

func (w *Writer) memoryTable(n change.Name) string {
	return w.bookTable(memoryName(w.cfg.Pipeline, n))
}

// bytesLiteral is a BLOB as an expression; NULL for nil.
func bytesLiteral(b []byte) string {
	if b == nil {
		return "NULL"
	}
	return "unhex('" + hex.EncodeToString(b) + "')"
}

// atOrBelow is the condition that a record lies at p or below.
func atOrBelow(p sequenced.Place) string {
	return fmt.Sprintf("(seq < %s OR seq = %[1]s AND place <= %s)", bytesLiteral(orEmpty(p.Seq)), bytesLiteral(orEmpty(p.At)))
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Head reads what is remembered of a target as a whole.
func (w *Writer) Head(ctx context.Context, t *scd.Target) (head sequenced.Head, err error) {
	err = w.readBook(ctx, "heads", func(c *conn) error {
		head, err = w.readHead(ctx, c, w.cfg.Pipeline, t.Name)
		return err
	})
	return head, w.explain("read what is remembered of "+t.Name.String(), err)
}

// readBook runs read on a connection of its own, unless the bookkeeping has no such
// table (an earlier version made it, or nobody did).
func (w *Writer) readBook(ctx context.Context, table string, read func(c *conn) error) error {
	c, err := w.reader(ctx)
	if err != nil || c == nil {
		return err
	}
	defer c.close()
	if exists, err := w.hasBookTable(ctx, c, table); err != nil || !exists {
		return err
	}
	return read(c)
}

func (w *Writer) readHead(ctx context.Context, c *conn, pipeline string, n change.Name) (head sequenced.Head, err error) {
	r, err := c.query(ctx, "SELECT truncated_seq, truncated_place, horizon FROM "+w.bookTable("heads")+" WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3",
		pipeline, schemaOf(n), n.Table)
	if err != nil {
		return head, err
	}
	defer r.close()
	for r.next() {
		head.Truncated.Seq, head.Truncated.At, head.Horizon = r.cols[0].blob(0), r.cols[1].blob(0), r.cols[2].blob(0)
	}
	return head, r.err
}

// remembering runs read where it sees what the open transaction wrote, and in a
// transaction in any case: between two statements that pass row ids no checkpoint
// may move the rows. Called by Apply's goroutine in the owner.
func (w *Writer) remembering(ctx context.Context, read func(c *conn) error) error {
	a := &w.apply
	switch {
	case a.open:
		return read(a.conn)
	case a.conn == nil && w.mustOwn() == nil:
		if err := a.connect(w); err != nil {
			return err
		}
	case a.conn == nil:
		c, err := w.reader(ctx)
		if err != nil || c == nil {
			return err
		}
		defer c.close()
		return inTransaction(ctx, c, func() error { return read(c) })
	}
	return inTransaction(ctx, a.conn, func() error { return read(a.conn) })
}

// Remembered reads the records that answer the lookups.
func (w *Writer) Remembered(ctx context.Context, t *scd.Target, at []sequenced.Lookup, fn func(sequenced.Record) error) error {
	if len(at) == 0 {
		return nil
	}
	err := w.remembering(ctx, func(c *conn) error {
		r := recall{conn: c, table: w.memoryTable(t.Name), at: at, fn: fn}
		return r.run(ctx)
	})
	return w.explain("read what is remembered of "+t.Name.String(), err)
}

// RememberedBelow reads the keys that have a record at p or below.
func (w *Writer) RememberedBelow(ctx context.Context, t *scd.Target, p sequenced.Place, fn func(key []byte) error) error {
	var keep scd.Arena
	err := w.remembering(ctx, func(c *conn) error {
		r, err := c.query(ctx, fmt.Sprintf("SELECT key FROM %s WHERE %s", w.memoryTable(t.Name), atOrBelow(p)))
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			for row := range r.size {
				if err := fn(kept(&keep, r.cols[0].bytes(row))); err != nil {
					return err
				}
			}
		}
		return r.err
	})
	return w.explain("read what is remembered of "+t.Name.String(), err)
}

// Keys reads keys in the order of their hashes, and those of one hash together: where
// it goes on is a hash.
func (w *Writer) Keys(ctx context.Context, t *scd.Target, from []byte, limit int, fn func(key []byte) error) (next []byte, err error) {
	var keep scd.Arena
	err = w.remembering(ctx, func(c *conn) error {
		table, where := w.memoryTable(t.Name), "octet_length(key) > 0"
		if from != nil {
			where += fmt.Sprintf(" AND h > %d", int64(binary.BigEndian.Uint64(from)))
		}
		hashes := fmt.Sprintf("SELECT DISTINCT h FROM %s WHERE %s ORDER BY h LIMIT %d", table, where, limit)
		found, err := c.number(ctx, "SELECT count(*) FROM ("+hashes+")")
		if err != nil || found == 0 {
			return err
		}
		last, err := c.number(ctx, "SELECT max(h) FROM ("+hashes+")")
		if err != nil {
			return err
		}
		if found == int64(limit) {
			next = binary.BigEndian.AppendUint64(nil, uint64(last))
		}
		r, err := c.query(ctx, fmt.Sprintf("SELECT DISTINCT key FROM %s WHERE %s AND h <= %d", table, where, last))
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			for row := range r.size {
				if err := fn(kept(&keep, r.cols[0].bytes(row))); err != nil {
					return err
				}
			}
		}
		return r.err
	})
	return next, w.explain("read what is remembered of "+t.Name.String(), err)
}

// Remembers counts the records of a sequenced target. It reads one narrow column.
func (w *Writer) Remembers(ctx context.Context, t *scd.Target) (n sink.MemorySize, err error) {
	none, _ := hashes(sequenced.RecordID{})
	err = w.readBook(ctx, memoryName(w.cfg.Pipeline, t.Name), func(c *conn) error {
		table := w.memoryTable(t.Name)
		r, err := c.query(ctx, fmt.Sprintf("SELECT count(*) - (SELECT count(*) FROM %s WHERE h = %d AND octet_length(key) = 0), count(*) FILTER (WHERE tombstone) FROM %[1]s", table, none))
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			n.Records, n.Tombstones = r.cols[0].int64(0), r.cols[1].int64(0)
		}
		return r.err
	})
	return n, w.explain("count what is remembered of "+t.Name.String(), err)
}

// kept copies b into the arena.
func kept(a *scd.Arena, b []byte) []byte { return append(a.Take(len(b)), b...) }

// recall is one reading of records.
//
// Lookups of whole keys (type 1) take one join on the keys' hashes. Lookups of a
// suffix take two steps, because few of a key's records are wanted: the first reads
// hash and sequence of all records and picks row ids, the second reads the picked
// records.
type recall struct {
	conn  *conn
	table string
	at    []sequenced.Lookup
	fn    func(sequenced.Record) error

	keep    scd.Arena
	below   []sequenced.Record // of each lookup the newest record below its sequence, so far
	strange []int64            // lookups that met a record of another key with the same hash
}

// pick is a record that a lookup may want.
type pick struct{ n, rid int64 }

func (r *recall) run(ctx context.Context) error {
	suffix := false
	for i := range r.at {
		suffix = suffix || r.at[i].Seq != nil
	}
	if err := r.stage(ctx, nil); err != nil {
		return err
	}
	if !suffix {
		return r.read(ctx, "looked AS q ON t.h = q.h", true)
	}
	r.below = make([]sequenced.Record, len(r.at))
	picked, err := r.pick(ctx)
	if err != nil {
		return err
	}
	if len(picked) > 0 {
		if err := stageNumbers(ctx, r.conn, "picked", "rid", len(picked), func(i int) (int64, int64) { return picked[i].n, picked[i].rid }); err != nil {
			return err
		}
		if err := r.read(ctx, "picked AS q ON t.rowid = q.rid", true); err != nil {
			return err
		}
	}
	if len(r.strange) > 0 {
		// The other key's record may have been taken for the newest below: look at all
		// of them. What lies in the suffix was read.
		if err := r.stage(ctx, r.strange); err != nil {
			return err
		}
		if err := r.read(ctx, "looked AS q ON t.h = q.h", false); err != nil {
			return err
		}
	}
	for i := range r.below {
		if r.below[i].Key != nil {
			if err := r.fn(r.below[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// stage fills the table looked with the lookups' numbers and hashes; only nil: of all.
func (r *recall) stage(ctx context.Context, only []int64) error {
	size := len(r.at)
	if only != nil {
		size = len(only)
	}
	return stageNumbers(ctx, r.conn, "looked", "h", size, func(i int) (int64, int64) {
		n := int64(i)
		if only != nil {
			n = only[i]
		}
		return n, int64(hashOn(hashStart, r.at[n].Key))
	})
}

// stageNumbers makes a temporary table of pairs of numbers, n and another.
func stageNumbers(ctx context.Context, c *conn, name, other string, size int, pair func(i int) (n, other int64)) error {
	ap, err := c.newTemp(ctx, name, own("n", asBigint), own(other, asBigint))
	if err != nil {
		return err
	}
	defer ap.discard()
	for i := range size {
		n, v := pair(i)
		put(ap, 0, n)
		put(ap, 1, v)
		if err := ap.end(); err != nil {
			return err
		}
	}
	_, err = ap.finish(ctx)
	return err
}

// pick finds of each lookup the suffix and the newest below. Records with one
// sequence are all picked: read decides between them by place.
func (r *recall) pick(ctx context.Context) ([]pick, error) {
	res, err := r.conn.query(ctx, fmt.Sprintf("SELECT q.n, t.rowid, t.seq FROM %s AS t JOIN %s AS q ON t.h = q.h", r.table, stageName("looked")))
	if err != nil {
		return nil, err
	}
	defer res.close()
	type newest struct {
		seq []byte // empty: none yet
		rid int64
	}
	const room = 16 // for most sequences
	picked := make([]pick, 0, len(r.at))
	below := make([]newest, len(r.at))
	seqs := make([]byte, room*len(r.at))
	for n := range below {
		below[n].seq = seqs[n*room : n*room : (n+1)*room]
	}
	ties := map[int64][]int64{}
	for res.next() {
		for row := range res.size {
			n, rid, seq := res.cols[0].int64(row), res.cols[1].int64(row), res.cols[2].bytes(row)
			b := &below[n]
			if r.at[n].Seq == nil || bytes.Compare(seq, r.at[n].Seq) >= 0 {
				picked = append(picked, pick{n, rid})
				continue
			}
			switch order := bytes.Compare(seq, b.seq); {
			case order > 0:
				b.seq, b.rid = append(b.seq[:0], seq...), rid
				if len(ties) > 0 {
					delete(ties, n)
				}
			case order == 0:
				ties[n] = append(ties[n], rid)
			}
		}
	}
	if res.err != nil {
		return nil, res.err
	}
	for n := range below {
		if len(below[n].seq) > 0 {
			picked = append(picked, pick{int64(n), below[n].rid})
		}
	}
	for n, rids := range ties {
		for _, rid := range rids {
			picked = append(picked, pick{n, rid})
		}
	}
	return picked, nil
}

// read reads the records t that a stage q names, and gives them to fn; those below
// a lookup's sequence wait in r.below. suffix false: only the latter are wanted.
func (r *recall) read(ctx context.Context, join string, suffix bool) error {
	res, err := r.conn.query(ctx, fmt.Sprintf("SELECT q.n, t.key, t.seq, t.place, t.body, t.tombstone, t.time FROM %s AS t JOIN temp.main.%s", r.table, join))
	if err != nil {
		return err
	}
	defer res.close()
	for res.next() {
		for row := range res.size {
			n := res.cols[0].int64(row)
			look := &r.at[n]
			if !bytes.Equal(res.cols[1].bytes(row), look.Key) {
				if suffix && look.Seq != nil {
					r.strange = append(r.strange, n)
				}
				continue
			}
			seq, place, body := res.cols[2].bytes(row), res.cols[3].bytes(row), res.cols[4].bytes(row)
			isBelow := look.Seq != nil && bytes.Compare(seq, look.Seq) < 0
			if isBelow {
				b := &r.below[n]
				if b.Key != nil && (sequenced.Place{Seq: seq, At: place}).Compare(sequenced.Place{Seq: b.Seq, At: b.At}) <= 0 {
					continue
				}
			} else if !suffix {
				continue
			}
			rec := sequenced.Record{Key: look.Key, Seq: kept(&r.keep, seq), At: kept(&r.keep, place), Body: kept(&r.keep, body),
				Tombstone: res.cols[5].bool(row), Time: res.cols[6].int64(row)}
			if isBelow {
				r.below[n] = rec
			} else if err := r.fn(rec); err != nil {
				return err
			}
		}
	}
	return res.err
}

// Reset empties a target and what is remembered of it.
func (w *Writer) Reset(ctx context.Context, t *scd.Target) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	w.mu.Lock()
	p, err := w.plan(ctx, t)
	w.mu.Unlock()
	if err != nil {
		return err
	}
	misfit := slices.ContainsFunc(p.Problems, func(f sink.Finding) bool { return f.Blocks && f.Reset })
	err = w.anew(ctx, c, t.Name, "it was emptied", func() error {
		if err := w.stillOurs(ctx, c); err != nil {
			return err
		}
		rel, err := w.look(ctx, c, t.Name)
		if err != nil {
			return err
		}
		if rel.exists && !rel.view {
			if err := w.empty(ctx, c, t, &rel, misfit); err != nil {
				return err
			}
		}
		if exists, err := w.hasBookTable(ctx, c, memoryName(w.cfg.Pipeline, t.Name)); err != nil || !exists {
			return err
		}
		if _, err := c.exec(ctx, "DELETE FROM "+w.memoryTable(t.Name)); err != nil {
			return err
		}
		if _, err := w.resolveWhere(ctx, c, "target_schema = $2 AND target_table = $3", t.Name.Schema, t.Name.Table); err != nil {
			return err
		}
		if err := w.forgetCounts(ctx, c, t.Name); err != nil {
			return err
		}
		if err := w.forget(ctx, c, "violations", "target_schema = $2 AND target_table = $3", t.Name.Schema, t.Name.Table); err != nil {
			return err
		}
		return w.replaceHead(ctx, c, t.Name, sequenced.Head{})
	})
	w.touched(t.Name)
	w.mu.Lock()
	w.shapes, w.known = nil, nil
	w.mu.Unlock()
	return w.explain("empty "+t.Name.String(), err)
}

// empty deletes all rows. A table of ours that no longer fits is made again: the
// engine cannot alter a column of a table with a primary key.
func (w *Writer) empty(ctx context.Context, c *conn, t *scd.Target, rel *relation, misfit bool) error {
	name := w.qualify(rel.schema, rel.table)
	ours := 0
	if misfit {
		n, err := c.number(ctx, "SELECT count(*) FROM "+w.bookTable("made")+" WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3", w.cfg.Pipeline, rel.schema, rel.table)
		if err != nil {
			return err
		}
		ours = int(n)
	}
	fed := false
	if t.ChangeFeed {
		feed, err := w.look(ctx, c, change.Name{Schema: bookSchema, Table: feedName(t)})
		if err != nil {
			return err
		}
		fed = feed.exists
	}
	if ours == 0 {
		if fed {
			s, err := w.shape(ctx, t)
			if err != nil {
				return err
			}
			n := &notes{shape: s}
			last, err := newestChange(ctx, c, w.bookTable(feedName(t)))
			if err != nil {
				return err
			}
			if _, err := c.exec(ctx, n.into(w.bookTable(feedName(t)), last, change.Position{}, time.Time{}, "")+n.rows(sink.FeedDelete, false)); err != nil {
				return err
			}
		}
		_, err := c.exec(ctx, "DELETE FROM "+name)
		return err
	}
	if fed { // its columns are the table's
		if _, err := c.exec(ctx, "DROP TABLE "+w.bookTable(feedName(t))); err != nil {
			return err
		}
	}
	for _, sql := range append([]string{"DROP TABLE " + name}, w.createTarget(t, false)...) {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// stillOurs is the fence of a transaction that does not move the mark.
func (w *Writer) stillOurs(ctx context.Context, c *conn) error {
	n, err := c.number(ctx, "SELECT count(*) FROM "+w.bookTable("marks")+" WHERE pipeline = $1 AND epoch = $2", w.cfg.Pipeline, w.epoch)
	if err == nil && n != 1 {
		err = w.fenced()
	}
	return err
}

// replaceHead stores what is remembered of a target as a whole.
func (w *Writer) replaceHead(ctx context.Context, c *conn, n change.Name, head sequenced.Head) error {
	changed, err := c.run(ctx, "DELETE FROM "+w.bookTable("heads")+" WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3", w.cfg.Pipeline, schemaOf(n), n.Table)
	if err != nil {
		return err
	}
	if changed != 1 {
		return fault.Corrupted("the bookkeeping holds %d memories of target %s", changed, n)
	}
	return w.insertMemory(ctx, c, n, head)
}

func (w *Writer) insertMemory(ctx context.Context, c *conn, n change.Name, head sequenced.Head) error {
	_, err := c.run(ctx, fmt.Sprintf("INSERT INTO %s VALUES ($1, $2, $3, $4, %s, %s, %s)", w.bookTable("heads"),
		bytesLiteral(head.Truncated.Seq), bytesLiteral(head.Truncated.At), bytesLiteral(head.Horizon)),
		w.cfg.Pipeline, schemaOf(n), n.Table, memoryName(w.cfg.Pipeline, n))
	return err
}
