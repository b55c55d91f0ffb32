package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Load relays the source's COPY stream into the target, byte for byte, on a
// session of its own. A table that we made gets its key after its rows: building
// an index once is cheaper than growing it.
func (w *Writer) Load(ctx context.Context, t *scd.Target, in sink.Copy, empty bool, done checkpoint.Table) (int64, error) {
	epoch, err := w.owned()
	if err != nil {
		return 0, err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return 0, err
	}
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		s.close(ctx)
		return 0, err
	}
	rows, doing, err := w.load(ctx, s, sh, epoch, in, empty, done)
	w.giveBack(ctx, s, err == nil && sh.direct())
	if err != nil {
		return 0, w.explain(ctx, err, doing, sh)
	}
	return rows, nil
}

// load says, beside an error, what it was doing.
func (w *Writer) load(ctx context.Context, s *session, sh *shape, epoch int64, in sink.Copy, empty bool, done checkpoint.Table) (rows int64, doing string, err error) {
	if err := w.fence(ctx, s, epoch); err != nil {
		return 0, "load", err
	}
	if err := s.exec(ctx, "BEGIN"); err != nil {
		return 0, "load", err
	}
	doing = "load"
	err = sh.fedBy(ctx, s, done.Since, func() error {
		if empty {
			if err := w.clear(ctx, s, sh); err != nil {
				doing = "empty"
				return err
			}
		}
		rows, err = w.copyIn(ctx, s, sh, in)
		return err
	})
	if err != nil {
		return 0, doing, err
	}
	if err := sh.ensureKey(ctx, s, w); err != nil {
		return 0, "add the primary key to", err
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return 0, "load", err
	}
	if err := w.barrier(ctx, s, sh.target.Name, "it was filled with a copy of its table"); err != nil {
		return 0, "record the load of", err
	}
	if err := saveTable(ctx, s, w.cfg.Pipeline, done); err != nil {
		return 0, "record the load of", err
	}
	// Until the load is on disk its table is not live.
	return rows, "commit the load of", s.exec(ctx, "SET LOCAL synchronous_commit = local; COMMIT")
}

// clear empties a target, and drops what a copy in parts of it has left. To make an
// empty table's file anew would take longer than to make the table, and readers
// would wait for the load.
func (w *Writer) clear(ctx context.Context, s *session, sh *shape) error {
	name := w.qualified(sh.target.Name)
	rows, err := s.ask(ctx, "SELECT (SELECT c.relkind = 'r' AND pg_relation_size(c.oid) = 0 FROM pg_class AS c WHERE c.oid = to_regclass($1)), to_regclass($2) IS NOT NULL", qualifiedName(name), qualifiedName(w.waiting(name)))
	if err != nil {
		return err
	}
	if str(rows[0][1]) == "t" {
		if err := s.exec(ctx, w.dropWaiting(name)); err != nil {
			return err
		}
	}
	if str(rows[0][0]) == "t" {
		return nil
	}
	return s.exec(ctx, sh.truncateSQL())
}

// copyIn runs the COPY. A generated column of the target takes no value, and a
// COPY stream cannot leave one out: there the rows go by way of a stage.
func (w *Writer) copyIn(ctx context.Context, s *session, sh *shape, in sink.Copy) (int64, error) {
	source := &reading{r: in.Rows}
	copySQL := sh.copySQL(in.Binary)
	if !sh.direct() {
		sh.stage = newStage(0)
		list := each(len(sh.columns), ", ", stageColumn)
		if sh.target.Kind == scd.Type2 {
			list += ", " + sh.stageStart()
		}
		if err := s.exec(ctx, sh.createStageSQL()); err != nil {
			return 0, err
		}
		copySQL = copyInto(sh.stage.name, list, in.Binary)
	}
	tag, err := s.conn.CopyFrom(ctx, source, copySQL)
	if source.err != nil {
		return 0, source.err // the stream's own error, before what the server says of its end
	}
	if err != nil {
		return 0, err
	}
	if !sh.direct() {
		from := sh.join(all, sentColumn)
		list := sh.columnList()
		if sh.target.Kind == scd.Type2 {
			from, list = from+", "+sh.stageStart(), list+", "+startColumn+", "+endColumn
		}
		if err := s.exec(ctx, fmt.Sprintf("INSERT INTO %s (%s)%s SELECT %s FROM %s AS s", sh.name, list, sh.overriding(), from, sh.stage.name)); err != nil {
			return 0, err
		}
	}
	return tag.RowsAffected(), nil
}

// ensureKey adds the primary key to a table of ours that has none yet.
func (sh *shape) ensureKey(ctx context.Context, s *session, w *Writer) error {
	if sh.keyed || len(sh.keys) == 0 {
		return nil
	}
	if err := s.exec(ctx, addKeySQL(w.qualified(sh.target.Name), sh.target)); err != nil {
		return err
	}
	sh.keyed = true
	return nil
}

// fence demands that the epoch is still ours. Inside a transaction it also makes
// a successor wait for that transaction's end.
func (w *Writer) fence(ctx context.Context, s *session, epoch int64) error {
	rows, err := s.query(ctx, fenceSQL, w.cfg.Pipeline, epoch)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fault.ErrFenced
	}
	return nil
}

// reading remembers the error that ended a stream.
type reading struct {
	r   io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
