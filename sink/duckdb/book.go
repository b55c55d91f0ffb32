//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Bookkeeping lives in schema _tailrace, without keys or indexes: a row is
// replaced by DELETE + INSERT. An UPDATE in place would stop every checkpoint
// while a reader's transaction is open.
//
// The mark is in two tables, so that Save, which seldom moves the position, and
// a batch, which moves nothing else, can be written beside each other: the engine
// fails the second of two transactions that replace one row.
const bookSchema = "_tailrace"

// bookTables are the definitions, by name.
var bookTables = [...][2]string{
	{"marks", "pipeline VARCHAR, phase VARCHAR, system VARCHAR, timeline BIGINT, source_database VARCHAR, slot VARCHAR, epoch BIGINT"},
	{"positions", "pipeline VARCHAR, position VARCHAR, commit_time TIMESTAMPTZ, epoch BIGINT"},
	{"tables", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, source_schema VARCHAR, source_table VARCHAR, source_id BIGINT, phase VARCHAR, since VARCHAR, reason VARCHAR"},
	{"flows", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, flow VARCHAR, number BIGINT, source_schema VARCHAR, source_table VARCHAR, source_id BIGINT, phase VARCHAR, since VARCHAR"},
	{"made", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR"},
	{"feeds", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, feed VARCHAR"},
	{"heads", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, remembered VARCHAR, truncated_seq BLOB, truncated_place BLOB, horizon BLOB"},
	{"counts", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, duplicates BIGINT, late BIGINT, ties BIGINT, truncated BIGINT, beyond BIGINT, unknown BIGINT, forgotten BIGINT"},
	{"files", "pipeline VARCHAR, relation_schema VARCHAR, relation_table VARCHAR, path VARCHAR, size BIGINT, modified TIMESTAMPTZ, checksum VARCHAR, events BIGINT"},
	{"quarantine", "pipeline VARCHAR, id BIGINT, flow VARCHAR, target_schema VARCHAR, target_table VARCHAR, reason VARCHAR, source_position VARCHAR, place BLOB, event_time TIMESTAMPTZ, event JSON, resolved TIMESTAMPTZ"},
	{"violations", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, flow VARCHAR, expectation VARCHAR, met VARCHAR, events BIGINT"},
	{"gaps", "pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, from_position VARCHAR, to_position VARCHAR, reason VARCHAR, recorded TIMESTAMPTZ"},
	{"runs", "pipeline VARCHAR, number BIGINT, why VARCHAR, started TIMESTAMPTZ, ended TIMESTAMPTZ, outcome VARCHAR, position VARCHAR, written BIGINT, error VARCHAR"},
	{"pauses", "pipeline VARCHAR, since TIMESTAMPTZ, asked_by VARCHAR"},
	{"points", "pipeline VARCHAR, number BIGINT, label VARCHAR, made TIMESTAMPTZ, gone BOOLEAN, mark JSON"},
	{"point_numbers", "pipeline VARCHAR, newest BIGINT"},
	{"undo", "pipeline VARCHAR, number BIGINT, part BIGINT, target_schema VARCHAR, target_table VARCHAR, kept VARCHAR, records VARCHAR, layout JSON, barrier VARCHAR, truncated_seq BLOB, truncated_place BLOB, horizon BLOB, duplicates BIGINT, late BIGINT, ties BIGINT, truncated BIGINT, beyond BIGINT, unknown BIGINT, forgotten BIGINT"},
	{"undo_files", "number BIGINT, was BOOLEAN, pipeline VARCHAR, relation_schema VARCHAR, relation_table VARCHAR, path VARCHAR, size BIGINT, modified TIMESTAMPTZ, checksum VARCHAR, events BIGINT"},
	{"undo_quarantine", "number BIGINT, was BOOLEAN, pipeline VARCHAR, id BIGINT, flow VARCHAR, target_schema VARCHAR, target_table VARCHAR, reason VARCHAR, source_position VARCHAR, place BLOB, event_time TIMESTAMPTZ, event JSON, resolved TIMESTAMPTZ"},
	{"undo_violations", "number BIGINT, was BOOLEAN, pipeline VARCHAR, target_schema VARCHAR, target_table VARCHAR, flow VARCHAR, expectation VARCHAR, met VARCHAR, events BIGINT"},
	{"owners", "pipeline VARCHAR, epoch BIGINT, host VARCHAR, boot_id VARCHAR, pid BIGINT, started BIGINT, instance VARCHAR, since TIMESTAMPTZ"},
}

func (w *Writer) bookTable(name string) string { return w.qualify(bookSchema, name) }

// takeOver makes the bookkeeping where missing and becomes owner with epoch + 1;
// mu is held.
func (w *Writer) takeOver(ctx context.Context, me checkpoint.Owner) error {
	w.known = nil // the bookkeeping may be new
	var mark checkpoint.Mark
	err := inTransaction(ctx, w.book, func() error {
		if _, err := w.book.exec(ctx, fmt.Sprintf("CREATE SCHEMA IF NOT EXISTS %s.%s", quote(w.catalog), quote(bookSchema))); err != nil {
			return err
		}
		for _, t := range bookTables {
			if _, err := w.book.exec(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s)", w.bookTable(t[0]), t[1])); err != nil {
				return err
			}
		}
		var err error
		if mark, err = w.readMark(ctx, w.book); err != nil {
			return err
		}
		mark.Epoch++
		for _, table := range []string{"marks", "positions"} {
			if _, err := w.book.run(ctx, "DELETE FROM "+w.bookTable(table)+" WHERE pipeline = $1", w.cfg.Pipeline); err != nil {
				return err
			}
		}
		w.epoch = mark.Epoch
		if err := w.insertHead(ctx, w.book, mark); err != nil {
			return err
		}
		if err := w.insertPosition(ctx, w.book, checkpoint.PlaceText(mark.Position, mark.Resume), mark.CommitTime); err != nil {
			return err
		}
		if err := w.deleteOwner(ctx); err != nil {
			return err
		}
		_, err = w.book.run(ctx, "INSERT INTO "+w.bookTable("owners")+" VALUES ($1, $2, $3, $4, $5, $6, $7, now())",
			w.cfg.Pipeline, mark.Epoch, me.Host, me.BootID, int64(me.PID), me.Started, me.Instance)
		return err
	})
	if err != nil {
		return w.explain("take over pipeline "+w.cfg.Pipeline, err)
	}
	w.commitTime = mark.CommitTime
	w.applied.Store(&mark.Position)
	return w.readWindow(ctx, w.book)
}

func (w *Writer) deleteOwner(ctx context.Context) error {
	_, err := w.book.run(ctx, "DELETE FROM "+w.bookTable("owners")+" WHERE pipeline = $1", w.cfg.Pipeline)
	return err
}

// forgetOwner removes the owner row; mu is held. After a teardown there is none.
func (w *Writer) forgetOwner(ctx context.Context) error {
	exists, err := w.hasBook(ctx, w.book)
	if err != nil || !exists {
		return w.explain("give up ownership", err)
	}
	return w.explain("give up ownership", w.deleteOwner(ctx))
}

// Heartbeat proves that the lock is still ours, and shows readers of the lock
// file that we live. Nothing is written to the database: the lock cannot be
// taken from a live process other than by removing its file.
func (w *Writer) Heartbeat(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.write {
		return fault.Corrupted("renew ownership of %s: %v", w.cfg.Path, errNotOwned)
	}
	if !w.lock.present() {
		return fmt.Errorf("lock file %s was removed or replaced: %w", w.lock.path, fault.ErrFenced)
	}
	now := time.Now()
	return w.explain("renew the lock file", os.Chtimes(w.lock.path, now, now))
}

// State reads the mark; the zero Mark where there is no file or no bookkeeping.
func (w *Writer) State(ctx context.Context) (checkpoint.Mark, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	exists, err := w.readyLocked(ctx)
	if err != nil || !exists {
		return checkpoint.Mark{}, err
	}
	if exists, err = w.hasBook(ctx, w.book); err != nil || !exists {
		return checkpoint.Mark{}, w.explain("read the mark", err)
	}
	m, err := w.readMark(ctx, w.book)
	return m, w.explain("read the mark", err)
}

func (w *Writer) hasBook(ctx context.Context, c *conn) (bool, error) {
	return w.hasBookTable(ctx, c, "marks")
}

func (w *Writer) hasBookTable(ctx context.Context, c *conn, name string) (bool, error) {
	n, err := c.number(ctx, "SELECT count(*) FROM duckdb_tables() WHERE database_name = $1 AND schema_name = $2 AND table_name = $3", w.catalog, bookSchema, name)
	return n > 0, err
}

func (w *Writer) readMark(ctx context.Context, c *conn) (m checkpoint.Mark, err error) {
	err = c.each(ctx, func(cells []*string) error {
		m.Phase = checkpoint.Phase(*cells[0])
		m.Source.System, m.Source.Database, m.Slot = *cells[1], *cells[3], *cells[4]
		timeline, err := strconv.ParseUint(*cells[2], 10, 32)
		if err != nil {
			return fault.Corrupted("read the mark: timeline: %v", err)
		}
		m.Source.Timeline = uint32(timeline)
		if m.Position, m.Resume, err = checkpoint.ParsePlace(*cells[5]); err != nil {
			return fault.Corrupted("read the mark: %v", err)
		}
		if cells[6] != nil {
			us, err := strconv.ParseInt(*cells[6], 10, 64)
			if err != nil {
				return fault.Corrupted("read the mark: commit time: %v", err)
			}
			m.CommitTime = time.UnixMicro(us).UTC()
		}
		m.Epoch, err = strconv.ParseInt(*cells[7], 10, 64)
		return err
	}, "SELECT m.phase, m.system, m.timeline, m.source_database, m.slot, p.position, epoch_us(p.commit_time), m.epoch FROM "+w.bookTable("marks")+" AS m JOIN "+w.bookTable("positions")+" AS p USING (pipeline) WHERE pipeline = $1", w.cfg.Pipeline)
	if err != nil {
		return m, err
	}
	err = c.each(ctx, func(cells []*string) error {
		t := checkpoint.Table{
			Target: change.Name{Schema: *cells[0], Table: *cells[1]}, Source: change.Name{Schema: *cells[2], Table: *cells[3]},
			Phase: checkpoint.Phase(*cells[5]), Reason: *cells[7],
		}
		id, err := strconv.ParseUint(*cells[4], 10, 32)
		if err != nil {
			return fault.Corrupted("read the mark: source id: %v", err)
		}
		t.ID = uint32(id)
		if t.Since, err = parsePosition(*cells[6]); err != nil {
			return err
		}
		m.Tables = append(m.Tables, t)
		return nil
	}, "SELECT target_schema, target_table, source_schema, source_table, source_id, phase, since, reason FROM "+w.bookTable("tables")+" WHERE pipeline = $1 ORDER BY 1, 2", w.cfg.Pipeline)
	if err != nil {
		return m, err
	}
	m.Flows, err = w.readFlows(ctx, c)
	return m, err
}

// readFlows reads the states of flows; the bookkeeping of an earlier version has none.
func (w *Writer) readFlows(ctx context.Context, c *conn) (flows []checkpoint.Flow, err error) {
	if exists, err := w.hasBookTable(ctx, c, "flows"); err != nil || !exists {
		return nil, err
	}
	err = c.each(ctx, func(cells []*string) error {
		f := checkpoint.Flow{
			Target: change.Name{Schema: *cells[0], Table: *cells[1]}, Name: *cells[2],
			Source: change.Name{Schema: *cells[4], Table: *cells[5]}, Phase: checkpoint.Phase(*cells[7]),
		}
		number, err := strconv.ParseUint(*cells[3], 10, 16)
		if err != nil {
			return fault.Corrupted("read the mark: number of flow %s: %v", f.Name, err)
		}
		id, err := strconv.ParseUint(*cells[6], 10, 32)
		if err != nil {
			return fault.Corrupted("read the mark: source id: %v", err)
		}
		f.Order, f.ID = uint16(number), uint32(id)
		if f.Since, err = parsePosition(*cells[8]); err != nil {
			return err
		}
		flows = append(flows, f)
		return nil
	}, "SELECT target_schema, target_table, flow, number, source_schema, source_table, source_id, phase, since FROM "+w.bookTable("flows")+" WHERE pipeline = $1 ORDER BY target_schema, target_table, number", w.cfg.Pipeline)
	return flows, err
}

func parsePosition(text string) (change.Position, error) {
	p, err := change.ParsePosition(text)
	if err != nil {
		return p, fault.Corrupted("read the mark: %v", err)
	}
	return p, nil
}

// Save replaces the mark's head, and the position where there is one, and
// upserts tables, in one durable transaction.
func (w *Writer) Save(ctx context.Context, m checkpoint.Mark) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	w.marking.Lock()
	defer w.marking.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	err := inTransaction(ctx, w.book, func() error {
		return w.saveMark(ctx, w.book, m, !m.Position.IsZero())
	})
	if err != nil {
		return w.explain("save the mark", err)
	}
	if !m.Position.IsZero() {
		w.commitTime = m.CommitTime
		w.applied.Store(&m.Position)
	}
	return nil
}

// saveMark replaces the mark's head and, if asked, its position, and upserts tables and
// flows, in the transaction that is open on c.
func (w *Writer) saveMark(ctx context.Context, c *conn, m checkpoint.Mark, position bool) error {
	n, err := c.run(ctx, "DELETE FROM "+w.bookTable("marks")+" WHERE pipeline = $1 AND epoch = $2", w.cfg.Pipeline, w.epoch)
	if err != nil {
		return err
	}
	if n != 1 {
		return w.fenced()
	}
	if err := w.insertHead(ctx, c, m); err != nil {
		return err
	}
	if position {
		if err := w.replacePosition(ctx, c, checkpoint.PlaceText(m.Position, m.Resume), m.CommitTime); err != nil {
			return err
		}
	}
	for _, t := range m.Tables {
		if err := w.saveTable(ctx, c, t); err != nil {
			return err
		}
	}
	for _, f := range m.Flows {
		if err := w.saveFlow(ctx, c, f); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) fenced() error {
	return fmt.Errorf("the mark of pipeline %s no longer carries epoch %d: %w", w.cfg.Pipeline, w.epoch, fault.ErrFenced)
}

func (w *Writer) insertHead(ctx context.Context, c *conn, m checkpoint.Mark) error {
	_, err := c.run(ctx, "INSERT INTO "+w.bookTable("marks")+" VALUES ($1, $2, $3, $4, $5, $6, $7)",
		w.cfg.Pipeline, string(m.Phase), m.Source.System, int64(m.Source.Timeline), m.Source.Database, m.Slot, w.epoch)
	return err
}

// replacePosition moves the position (a place's text), fenced: its row must carry our epoch.
func (w *Writer) replacePosition(ctx context.Context, c *conn, place string, commit time.Time) error {
	n, err := c.run(ctx, "DELETE FROM "+w.bookTable("positions")+" WHERE pipeline = $1 AND epoch = $2", w.cfg.Pipeline, w.epoch)
	if err != nil {
		return err
	}
	if n != 1 {
		return w.fenced()
	}
	return w.insertPosition(ctx, c, place, commit)
}

func (w *Writer) insertPosition(ctx context.Context, c *conn, place string, commit time.Time) error {
	_, err := c.run(ctx, "INSERT INTO "+w.bookTable("positions")+" VALUES ($1, $2, make_timestamptz($3), $4)",
		w.cfg.Pipeline, place, commitMicros(commit), w.epoch)
	return err
}

// commitMicros is a commit time as a parameter: NULL for none.
func commitMicros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

func (w *Writer) saveTable(ctx context.Context, c *conn, t checkpoint.Table) error {
	if _, err := c.run(ctx, "DELETE FROM "+w.bookTable("tables")+" WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3",
		w.cfg.Pipeline, t.Target.Schema, t.Target.Table); err != nil || t.Phase == checkpoint.None {
		return err
	}
	_, err := c.run(ctx, "INSERT INTO "+w.bookTable("tables")+" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		w.cfg.Pipeline, t.Target.Schema, t.Target.Table, t.Source.Schema, t.Source.Table, int64(t.ID), string(t.Phase), t.Since.String(), t.Reason)
	return err
}

func (w *Writer) saveFlow(ctx context.Context, c *conn, f checkpoint.Flow) error {
	if _, err := c.run(ctx, "DELETE FROM "+w.bookTable("flows")+" WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3 AND flow = $4",
		w.cfg.Pipeline, f.Target.Schema, f.Target.Table, f.Name); err != nil || f.Phase == checkpoint.None {
		return err
	}
	_, err := c.run(ctx, "INSERT INTO "+w.bookTable("flows")+" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
		w.cfg.Pipeline, f.Target.Schema, f.Target.Table, f.Name, int64(f.Order), f.Source.Schema, f.Source.Table, int64(f.ID), string(f.Phase), f.Since.String())
	return err
}

// setLive brings a target from catching to live.
func (w *Writer) setLive(ctx context.Context, c *conn, name change.Name) error {
	tables := w.bookTable("tables")
	where := " WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3"
	if _, err := c.run(ctx, "CREATE OR REPLACE TEMP TABLE mark AS SELECT * REPLACE ('live' AS phase) FROM "+tables+where, w.cfg.Pipeline, name.Schema, name.Table); err != nil {
		return err
	}
	n, err := c.run(ctx, "DELETE FROM "+tables+where, w.cfg.Pipeline, name.Schema, name.Table)
	if err != nil {
		return err
	}
	if n != 1 {
		return fault.Corrupted("target %s becomes live but has %d rows in the bookkeeping", name, n)
	}
	_, err = c.exec(ctx, "INSERT INTO "+tables+" SELECT * FROM "+stageName("mark"))
	return err
}

// Teardown removes this pipeline's bookkeeping, and the schema when it was the
// last. It takes the file's lock where the process does not own it.
func (w *Writer) Teardown(ctx context.Context) error {
	if _, err := os.Stat(w.cfg.Path); os.IsNotExist(err) {
		return nil
	}
	w.mu.Lock()
	owned := w.write
	w.mu.Unlock()
	if !owned {
		if err := w.Own(ctx, checkpoint.Owner{PID: os.Getpid()}, 0); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shapes, w.known = nil, nil
	w.window.Store(nil)
	err := inTransaction(ctx, w.book, func() error {
		memories, err := w.memories(ctx)
		if err != nil {
			return err
		}
		feeds, err := w.feeds(ctx)
		if err != nil {
			return err
		}
		undo, err := w.undoTables(ctx, w.book, "true")
		if err != nil {
			return err
		}
		for _, name := range slices.Concat(memories, feeds, undo) {
			if _, err := w.book.exec(ctx, "DROP TABLE IF EXISTS "+w.bookTable(name)); err != nil {
				return err
			}
		}
		if err := w.unstage(ctx, w.book); err != nil {
			return err
		}
		var rest int64
		for _, t := range bookTables {
			if _, err := w.book.run(ctx, "DELETE FROM "+w.bookTable(t[0])+" WHERE pipeline = $1", w.cfg.Pipeline); err != nil {
				return err
			}
			n, err := w.book.number(ctx, "SELECT count(*) FROM "+w.bookTable(t[0]))
			if err != nil {
				return err
			}
			rest += n
		}
		if rest > 0 {
			return nil
		}
		_, err = w.book.exec(ctx, fmt.Sprintf("DROP SCHEMA %s.%s CASCADE", quote(w.catalog), quote(bookSchema)))
		return err
	})
	return w.explain("remove the bookkeeping", err)
}

// memories lists the tables of what this pipeline's targets remember.
func (w *Writer) memories(ctx context.Context) (names []string, err error) {
	err = w.book.each(ctx, func(cells []*string) error {
		names = append(names, *cells[0])
		return nil
	}, "SELECT remembered FROM "+w.bookTable("heads")+" WHERE pipeline = $1", w.cfg.Pipeline)
	return names, err
}

// inTransaction runs fn between BEGIN and COMMIT, or ROLLBACK on its error.
func inTransaction(ctx context.Context, c *conn, fn func() error) error {
	if _, err := c.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		_, err = c.exec(ctx, "COMMIT")
	}
	if err != nil {
		// The transaction may be gone already; ROLLBACK can say no more than that.
		_, _ = c.exec(context.Background(), "ROLLBACK")
	}
	return err
}
