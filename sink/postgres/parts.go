package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
	"unicode/utf8"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

var _ sink.Parts = (*Writer)(nil)

// A copy in parts is several transactions, and each of them would show. So the
// table goes away first: as soon as it is made, empty, it moves into schema _tailrace
// under a name of ours, where the parts fill it, and comes back, with its key, in the
// transaction that makes it live. It is made in its own schema before it moves, so
// that the privileges which that schema gives to new tables are there; and it is the
// same table all the time, so that nothing is left to be cleaned when it comes back.
//
// A part ends with a fence, like Load, so that of an owner that was deposed no part
// arrives any more: a successor drops the table and begins again.

// waitingName names the table of a copy in parts: by its pipeline and target, so that
// each start finds it.
func waitingName(pipeline string, n change.Name) string {
	sum := sha256.Sum256([]byte(pipeline + "\x00" + n.Schema + "\x00" + n.Table))
	name := "copy_" + hex.EncodeToString(sum[:8]) + "_" + n.Table
	for len(name) > 63 || !utf8.ValidString(name) {
		name = name[:len(name)-1]
	}
	return name
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
	w.giveBack(ctx, s, err == nil)
	return began, w.explain(ctx, err, "prepare to copy parts of table "+t.Name.String(), nil)
}

func (w *Writer) beginParts(ctx context.Context, s *session, epoch int64, name change.Name, t *scd.Target) (bool, error) {
	r, err := w.readRelation(ctx, s, name)
	if err != nil || r == nil || !r.ours || r.kind != "r" || r.parent || t.Sequenced || len(r.indexes)+len(r.triggers)+len(r.foreign) > 0 {
		return false, err
	}
	waiting := w.waiting(name)
	rows, err := s.query(ctx, "SELECT EXISTS (SELECT FROM "+qualifiedName(name)+") OR EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_class'::regclass AND refobjid = $1::oid AND deptype = 'n' AND classid IN ('pg_rewrite'::regclass, 'pg_publication_rel'::regclass)), has_schema_privilege('_tailrace', 'CREATE')", r.oid)
	if err != nil || str(rows[0][0]) == "t" || str(rows[0][1]) != "t" {
		return false, err
	}
	if err := s.exec(ctx, "BEGIN; SET LOCAL lock_timeout = '30s'"); err != nil {
		return false, err
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return false, err
	}
	return true, s.exec(ctx, fmt.Sprintf("DROP TABLE IF EXISTS %s; ALTER TABLE %s RENAME TO %s; ALTER TABLE %s SET SCHEMA _tailrace; COMMIT",
		qualifiedName(waiting), qualifiedName(name), quote(waiting.Table), qualifiedName(change.Name{Schema: name.Schema, Table: waiting.Table})))
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
	sh, err := w.shapeAt(ctx, s, t, w.waiting(w.qualified(t.Name)))
	var rows int64
	if err == nil {
		rows, err = w.loadPart(ctx, s, sh, epoch, in)
	}
	w.giveBack(ctx, s, err == nil)
	return rows, w.explain(ctx, err, "load", sh)
}

func (w *Writer) loadPart(ctx context.Context, s *session, sh *shape, epoch int64, in sink.Copy) (int64, error) {
	if err := w.fence(ctx, s, epoch); err != nil {
		return 0, err
	}
	if err := s.exec(ctx, "BEGIN"); err != nil {
		return 0, err
	}
	rows, err := w.copyIn(ctx, s, sh, in)
	if err != nil {
		return 0, err
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return 0, err
	}
	return rows, s.exec(ctx, "COMMIT")
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
	sh, err := w.shapeAt(ctx, s, t, w.waiting(name))
	if err == nil {
		err = w.endParts(ctx, s, sh, epoch, name, done)
	}
	w.giveBack(ctx, s, err == nil)
	if stateOf(err) == duplicateTable {
		return fault.Refuse("drop that table, or rename it, and run again", "table %s was made by somebody while its rows were copied: they wait as table %s", name, w.waiting(name))
	}
	return w.explain(ctx, err, "add the primary key to", sh)
}

const duplicateTable = "42P07"

func (w *Writer) endParts(ctx context.Context, s *session, sh *shape, epoch int64, name change.Name, done checkpoint.Table) error {
	// What is on disk when this is, are the parts too: their commits lie before it.
	loaded := done
	loaded.Phase = checkpoint.Copying
	steps := []struct {
		first string
		table checkpoint.Table
	}{
		{"", loaded},
		{fmt.Sprintf("ALTER TABLE %s SET SCHEMA %s; ALTER TABLE %s RENAME TO %s", sh.name, quote(name.Schema),
			qualifiedName(change.Name{Schema: name.Schema, Table: waitingName(w.cfg.Pipeline, name)}), quote(name.Table)), done},
	}
	if done.Phase == checkpoint.None {
		steps = steps[1:]
	}
	for _, step := range steps {
		if err := s.exec(ctx, "BEGIN;"+step.first); err != nil {
			return err
		}
		if step.first != "" && len(sh.keys) > 0 {
			if err := s.exec(ctx, addKeySQL(name, sh.target)); err != nil {
				return err
			}
		}
		if step.first != "" && sh.feed != nil {
			arrived := *sh
			arrived.name = qualifiedName(name)
			if err := s.conn.ExecParams(ctx, arrived.feedNewSQL(""), feedParams(done.Since, time.Time{}), nil, nil, nil).Read().Err; err != nil {
				return err
			}
		}
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if err := w.barrier(ctx, s, name, "it was filled with a copy of its table"); err != nil {
			return err
		}
		if err := saveTable(ctx, s, w.cfg.Pipeline, step.table); err != nil {
			return err
		}
		if err := s.exec(ctx, "SET LOCAL synchronous_commit = local; COMMIT"); err != nil {
			return err
		}
		if step.first == "" {
			fault.KillPoint("parts loaded")
		}
	}
	return nil
}

// dropWaiting is the statement that removes what a copy in parts has left.
func (w *Writer) dropWaiting(n change.Name) string {
	return "DROP TABLE IF EXISTS " + qualifiedName(w.waiting(n))
}
