package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// The keep slot.
//
// A slot keeps the log from its restart position on, and the rows of the catalogues that
// reading it needs. One slot cannot serve both a quick restart and a way back: it would
// have to stay where the oldest rewind point is, and each restart would read all from
// there. So there are two. The live slot is confirmed up to the durable mark, as without
// rewind. The keep slot is a copy of it, made once, which nobody reads; it is advanced to
// the oldest point whenever that moves. Advancing reads the log between, without decoding
// it, in a session that does nothing else: Follow does not wait for it.
//
// The way back makes the live slot anew, as a copy of the keep slot. A copy is made in one
// step, so there are three states, and each says what is left to do: the live slot is
// ahead of the point (drop it), it is missing (copy), it can be followed from the point
// (nothing). The keep slot stays through all of them.
//
// Like everything of ours on the server, it is found by its name alone.
var _ source.Keeper = (*Source)(nil)

// keepLag is how far behind its place an advanced slot may keep the log before it is
// advanced once more: one file of the usual size, for the server frees whole files.
const keepLag = 16 << 20

// Keep implements source.Keeper.
func (s *Source) Keep(ctx context.Context, p change.Position) error {
	var slot slotRow
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if slot, err = readSlotNamed(ctx, conn, s.names.keep); err != nil {
			return err
		}
		if slot.Exists {
			if slot.Problem != "" {
				return slot.refusal()
			}
			return nil
		}
		live, err := s.readSlot(ctx, conn)
		if err != nil {
			return err
		}
		if err := live.refusal(); err != nil {
			return err
		}
		if err := s.copySlot(ctx, conn, live.Name, s.names.keep); err != nil {
			return err
		}
		slot, err = readSlotNamed(ctx, conn, s.names.keep)
		return err
	})
	if err == nil && slot.Exists && !slot.Lost && !p.Before(slot.Confirmed) {
		err = s.advance(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("keep the log from %s on: %w", p, err)
	}
	return nil
}

// advance moves the keep slot to p, which is not before its place. At its place it is
// touched all the same: it counts as in use then (idle_replication_slot_timeout).
//
// The server moves what the slot keeps to the first place only that it has found fit on
// the way. When it reads the same stretch again, all of it is confirmed, and it takes the
// last: the second reading frees now what the next call would free.
func (s *Source) advance(ctx context.Context, p change.Position) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeSoon(conn.PgConn())
	statement := fmt.Sprintf("SELECT pg_replication_slot_advance(%s, %s)", literal(s.names.keep), literal(p.String()))
	deadline := time.Now().Add(10 * time.Second)
	for first := true; ; {
		_, err := conn.Exec(ctx, statement)
		switch {
		case err == nil && first:
			slot, err := readSlotNamed(ctx, conn, s.names.keep)
			if err != nil || slot.Confirmed.Since(slot.Restart) <= keepLag {
				return err
			}
			first = false
			continue
		case err == nil:
			return nil
		case isState(err, "42501"):
			return s.keepRights(err)
		case !isState(err, "55006"): // object in use
			// It may have been lost meanwhile, which is no error: Kept says so.
			if slot, e := readSlotNamed(ctx, conn, s.names.keep); e == nil && slot.Lost {
				return nil
			}
			return fmt.Errorf("advance slot %s: %w", s.names.keep, err)
		}
		// An earlier process of ours may still be advancing it.
		slot, e := readSlotNamed(ctx, conn, s.names.keep)
		if e == nil && slot.Active {
			e = s.endHolder(ctx, conn, slot)
		}
		if e != nil {
			return e
		}
		if time.Now().After(deadline) {
			return fault.Retry(err, "advance slot %s: session %d holds it", s.names.keep, slot.ActivePID)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// copySlot makes a permanent slot that stands where another stands.
func (s *Source) copySlot(ctx context.Context, conn *pgx.Conn, from, to string) error {
	_, err := conn.Exec(ctx, fmt.Sprintf("SELECT pg_copy_logical_replication_slot(%s, %s, false)", literal(from), literal(to)))
	switch {
	case err == nil:
		s.log.Info("copied a slot", "slot", from, "copy", to)
		return nil
	case isState(err, "42501"):
		return s.keepRights(err)
	case isState(err, "55000"), isState(err, "0A000"): // it was lost, or is still being made, since it was looked at
		return fault.Retry(err, "copy slot %s", from)
	}
	return s.explainCreate(to, err)
}

// keepRights explains that slots may not be copied or advanced.
func (s *Source) keepRights(err error) error {
	return fault.Refuse(s.keepGrants(), "role %s may not copy and advance replication slots: %v", s.conn.User, err)
}

// keepFunctions are what the keep slot needs.
var keepFunctions = []string{"pg_copy_logical_replication_slot(name, name, boolean)", "pg_replication_slot_advance(name, pg_lsn)", "pg_drop_replication_slot(name)"}

// keepGrants is what an administrator runs for that.
func (s *Source) keepGrants() string {
	role := ident(s.conn.User)
	remedy := "ALTER ROLE " + role + " REPLICATION; -- or, on a managed service, grant its replication role"
	for _, f := range keepFunctions {
		remedy += "\nGRANT EXECUTE ON FUNCTION pg_catalog." + f + " TO " + role + ";"
	}
	return remedy
}

// Kept implements source.Keeper.
func (s *Source) Kept(ctx context.Context) (source.Kept, error) {
	ctx, done := context.WithTimeout(ctx, lookPatience)
	defer done()
	var slot slotRow
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		slot, err = readSlotNamed(ctx, conn, s.names.keep)
		if err == nil && slot.Problem != "" {
			err = slot.refusal()
		}
		return err
	})
	if err != nil {
		return source.Kept{}, fmt.Errorf("look at what is kept: %w", err)
	}
	return slot.kept(), nil
}

// kept is what a keep slot keeps. One of another make is none.
func (r slotRow) kept() source.Kept {
	if !r.Exists || r.Problem != "" {
		return source.Kept{Name: r.Name}
	}
	return source.Kept{Exists: true, Name: r.Name, From: r.Confirmed, Bytes: r.Retained, Lost: r.Lost, Why: r.LostWhy}
}

// Return implements source.Keeper.
func (s *Source) Return(ctx context.Context, p change.Position) error {
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		live, err := s.readSlot(ctx, conn)
		switch {
		case err != nil:
			return err
		case live.Problem != "":
			return live.refusal()
		case live.Exists && !live.Lost && !p.Before(live.Confirmed):
			return nil
		}
		keep, err := readSlotNamed(ctx, conn, s.names.keep)
		if err != nil {
			return err
		}
		if err := keep.returnRefusal(p); err != nil {
			return err
		}
		// Dropped only now that what takes its place is known to be there.
		if err := s.dropSlot(ctx, conn, live.Name); err != nil {
			return err
		}
		return s.copySlot(ctx, conn, keep.Name, live.Name)
	})
	if err != nil {
		return fmt.Errorf("go back to %s in the source's log: %w", p, err)
	}
	return nil
}

// returnRefusal names what keeps the live slot from becoming a copy of this one; nil: it can.
func (r slotRow) returnRefusal(p change.Position) error {
	switch {
	case !r.Exists:
		return fault.Refuse("the points of before cannot be replayed: rewind to none, or `tailrace run --overwrite` copies everything again",
			"slot %s, which keeps the log for rewind points, does not exist: somebody dropped it", r.Name)
	case r.Problem != "":
		return r.refusal()
	case r.Lost:
		return fault.Refuse("the points of before cannot be replayed. For later ones raise max_slot_wal_keep_size, from version 18 on idle_replication_slot_timeout too, "+
			"or lower rewind.keep; `tailrace check` compares them", "slot %s, which keeps the log for rewind points, is lost: %s", r.Name, r.LostWhy)
	case p.Before(r.Confirmed):
		return fault.Refuse("rewind to a later point", "the log is kept from %s on (slot %s), and %s lies before", r.Confirmed, r.Name, p)
	}
	return nil
}

// Unkeep implements source.Keeper.
func (s *Source) Unkeep(ctx context.Context) error {
	if err := s.ask(ctx, s.dropKeep); err != nil {
		return fmt.Errorf("let go of what is kept for rewind points: %w", err)
	}
	return nil
}

// dropKeep drops the keep slot. One of another make is not ours, and stays.
func (s *Source) dropKeep(ctx context.Context, conn *pgx.Conn) error {
	slot, err := readSlotNamed(ctx, conn, s.names.keep)
	if err != nil || !slot.Exists {
		return err
	}
	if slot.Problem != "" {
		s.log.Warn("a slot has the name of this pipeline's keep slot and is none; it stays", "slot", slot.Name, "because", slot.Problem)
		return nil
	}
	return s.dropSlot(ctx, conn, slot.Name)
}
