package mysql

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

var _ sink.Parts = (*Writer)(nil)

// A copy in parts is several transactions, and each of them would show. So the table goes
// away first: as soon as it is made, empty, it moves into database _tailrace under a name
// of ours, where the parts fill it, and comes back when it is whole.
//
// RENAME commits by itself. So that all rows are there is written down before it, and
// that the table is live after it; who comes in between finds the table in its place, or
// still waiting, and goes on. It keeps its key all the time: the rows lie in the key's
// index, and to make that later would be to write them once more.
//
// A part ends with a fence, like Load, so that of an owner that was deposed no part
// arrives any more: a successor drops the table and begins again.

// waitingName names the table of a copy in parts: by its pipeline and target, so that
// each start finds it.
func waitingName(pipeline string, n change.Name) string {
	sum := sha256.Sum256([]byte(pipeline + "\x00" + n.Schema + "\x00" + n.Table))
	name := []rune("copy_" + hex.EncodeToString(sum[:8]) + "_" + n.Table)
	return strings.TrimRight(string(name[:min(len(name), nameMax)]), " ")
}

func (w *Writer) waiting(n change.Name) change.Name {
	return change.Name{Schema: "_tailrace", Table: waitingName(w.cfg.Pipeline, n)}
}

// BeginParts implements sink.Parts.
func (w *Writer) BeginParts(ctx context.Context, t *scd.Target) (bool, error) {
	epoch, err := w.owned()
	if err != nil {
		return false, err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return false, err
	}
	began, err := w.beginParts(ctx, s, epoch, w.qualified(t.Name), t)
	w.giveBack(s, err == nil)
	return began, w.explain(err, "prepare to copy parts of table "+t.Name.String(), nil)
}

// dependSQL finds what would miss a table: a view whose text, as the servers keep it,
// names it, or a foreign key to it.
const dependSQL = `SELECT EXISTS (SELECT 1 FROM information_schema.VIEWS WHERE INSTR(VIEW_DEFINITION, ?) > 0)
  OR EXISTS (SELECT 1 FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE UNIQUE_CONSTRAINT_SCHEMA = ? AND REFERENCED_TABLE_NAME = ?)`

func (w *Writer) beginParts(ctx context.Context, s *session, epoch int64, name change.Name, t *scd.Target) (bool, error) {
	r, err := w.readRelation(ctx, s, name)
	if err != nil || r == nil || !r.ours || t.Sequenced || len(r.triggers) > 0 {
		return false, err
	}
	key := r.keyIndex(t)
	for i := range r.indexes {
		if &r.indexes[i] != key {
			return false, nil
		}
	}
	rows, err := s.query(ctx, "SELECT EXISTS (SELECT 1 FROM "+qualifiedName(name)+") OR ("+bind(dependSQL, qualifiedName(name), name.Schema, name.Table)+")")
	if err != nil || str(rows[0][0]) != "0" {
		return false, err
	}
	waiting := w.waiting(name)
	err = w.heldFence(ctx, epoch, func() error {
		if err := dropWaiting(ctx, s, waiting); err != nil {
			return err
		}
		return rename(ctx, s, name, waiting)
	})
	if notPermitted(err) {
		return false, nil
	}
	return err == nil, err
}

func rename(ctx context.Context, s *session, from, to change.Name) error {
	_, err := s.exec(ctx, "RENAME TABLE "+qualifiedName(from)+" TO "+qualifiedName(to))
	return err
}

// dropWaiting removes what a copy in parts has left.
func dropWaiting(ctx context.Context, s *session, waiting change.Name) error {
	_, err := s.exec(ctx, "DROP TABLE IF EXISTS "+qualifiedName(waiting))
	return err
}

// there reports whether there is a table of that name.
func (s *session) there(ctx context.Context, n change.Name) (bool, error) {
	rows, err := about(ctx, s, relationSQL, n)
	return len(rows) > 0, err
}

// LoadPart implements sink.Parts.
func (w *Writer) LoadPart(ctx context.Context, t *scd.Target, in sink.Copy) (int64, error) {
	epoch, err := w.owned()
	if err != nil {
		return 0, err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return 0, err
	}
	var rows int64
	var sh *shape
	if err = w.fence(ctx, s, epoch); err == nil {
		sh, err = w.shapeAt(ctx, s, t, w.waiting(w.qualified(t.Name)))
	}
	if err == nil {
		err = within(ctx, s, func() error {
			if rows, err = copyIn(ctx, s, sh, "load", sh.name, sh.columnList(), in, t.Kind == scd.Type2); err != nil {
				return err
			}
			return w.fence(ctx, s, epoch)
		})
	}
	w.giveBack(s, err == nil)
	return rows, w.present(err, "load", sh)
}

// EndParts implements sink.Parts.
func (w *Writer) EndParts(ctx context.Context, t *scd.Target, done checkpoint.Table) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return err
	}
	name := w.qualified(t.Name)
	err = w.endParts(ctx, s, epoch, t, name, done)
	w.giveBack(s, err == nil)
	if numberOf(err) == erTableThere {
		return fault.Refuse("drop that table, or rename it, and run again", "table %s was made by somebody while its rows were copied: they wait as table %s", name, w.waiting(name))
	}
	return w.explain(err, "end the copy of table "+t.Name.String(), nil)
}

func (w *Writer) endParts(ctx context.Context, s *session, epoch int64, target *scd.Target, name change.Name, done checkpoint.Table) error {
	save := func(t checkpoint.Table, first func() error) error {
		return within(ctx, s, func() error {
			if err := w.fence(ctx, s, epoch); err != nil {
				return err
			}
			if err := w.barrier(ctx, s, target.Name, filledAnew); err != nil || t.Phase == checkpoint.None {
				return err
			}
			if err := first(); err != nil {
				return err
			}
			return saveTable(ctx, s, w.cfg.Pipeline, t)
		})
	}
	loaded := done
	if loaded.Phase != checkpoint.None {
		loaded.Phase = checkpoint.Copying
	}
	if err := save(loaded, func() error { return nil }); err != nil {
		return err
	}
	fault.KillPoint("parts loaded")
	waiting := w.waiting(name)
	waits, err := s.there(ctx, waiting)
	if err != nil {
		return err
	}
	if !waits { // it is in its place, if nobody has taken it away
		there, err := s.there(ctx, name)
		if err == nil && !there {
			err = fault.Refuse("tailrace resync for that table", "the rows of table %s were copied, and are not there any more", name)
		}
		if err != nil {
			return err
		}
	} else if err := w.heldFence(ctx, epoch, func() error { return rename(ctx, s, waiting, name) }); err != nil {
		return err
	}
	fault.KillPoint("parts placed")
	return save(done, func() error {
		if !target.ChangeFeed {
			return nil
		}
		sh, err := w.shapeOf(ctx, s, target)
		if err == nil {
			_, err = s.exec(ctx, sh.newSQL(sink.FeedInsert, "", done.Since))
		}
		return err
	})
}
