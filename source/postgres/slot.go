package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

const plugin = "pgoutput"

// slotRow is a slot as pg_replication_slots shows it.
type slotRow struct {
	source.SlotState
	database string // current one
}

// readSlot reads the live slot and judges its make.
func (s *Source) readSlot(ctx context.Context, conn *pgx.Conn) (slotRow, error) {
	return readSlotNamed(ctx, conn, s.names.slot)
}

func readSlotNamed(ctx context.Context, conn *pgx.Conn, name string) (slotRow, error) {
	why := "NULL::text"
	switch v := versionOf(conn.PgConn()); {
	case v >= 17:
		why = "invalidation_reason"
	case v == 16:
		why = "CASE WHEN conflicting THEN 'conflict with recovery' END"
	}
	var r slotRow
	r.Name = name
	var kind, usedPlugin, database, status, reason *string
	var twoPhase, temporary bool
	var pid *int
	var confirmed, restart *string
	var retained *int64
	err := conn.QueryRow(ctx, `
SELECT current_database(), slot_type, plugin::text, database::text, two_phase, temporary, active, active_pid,
       confirmed_flush_lsn::text, restart_lsn::text, wal_status, `+why+`,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = $1`, r.Name).Scan(&r.database, &kind, &usedPlugin, &database, &twoPhase, &temporary,
		&r.Active, &pid, &confirmed, &restart, &status, &reason, &retained)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("read slot %s: %w", r.Name, err)
	}
	r.Exists = true
	if pid != nil {
		r.ActivePID = *pid
	}
	if retained != nil {
		r.Retained = *retained
	}
	for _, at := range []struct {
		text *string
		into *change.Position
	}{{confirmed, &r.Confirmed}, {restart, &r.Restart}} {
		if at.text != nil {
			if *at.into, err = change.ParsePosition(*at.text); err != nil {
				return r, fault.Corrupted("slot %s: %v", r.Name, err)
			}
		}
	}
	switch {
	case *kind != "logical":
		r.Problem = "it is a " + *kind + " slot"
	case *database != r.database:
		r.Problem = "it belongs to database " + *database
	case *usedPlugin != plugin:
		r.Problem = "it uses the plugin " + *usedPlugin
	case twoPhase:
		r.Problem = "it decodes prepared transactions (two_phase)"
	case temporary:
		r.Problem = "it is a temporary slot of a session"
	}
	if status != nil && *status == "lost" || reason != nil || *kind == "logical" && restart == nil && confirmed != nil {
		r.Lost = true
		r.LostWhy = "the server has removed log that it still needed (max_slot_wal_keep_size)"
		switch {
		case reason == nil || *reason == "wal_removed":
		case *reason == "idle_timeout":
			r.LostWhy = "it was not used for longer than the server allows (idle_replication_slot_timeout)"
		default:
			r.LostWhy = *reason
		}
	}
	return r, nil
}

// besideSQL finds what is kept for our snapshots: each has a temporary slot, which belongs
// to the session that made it.
const besideSQL = `
SELECT coalesce(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn)), 0)::bigint
FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.temporary AND starts_with(s.slot_name, $1) AND a.application_name = $2`

// refusal names what is wrong with the live slot; nil if it can be followed.
func (r slotRow) refusal() error {
	dropIt := fmt.Sprintf("SELECT pg_drop_replication_slot(%s)", literal(r.Name))
	switch {
	case !r.Exists:
		return fault.Refuse("the changes since the mark are gone: `tailrace run --overwrite` copies everything again from a new slot",
			"slot %s does not exist", r.Name)
	case r.Problem != "":
		return fault.Refuse("use another pipeline name or source.slot, or remove it: "+dropIt, "slot %s cannot be used: %s", r.Name, r.Problem)
	case r.Lost:
		return fault.Refuse("`tailrace run --overwrite` copies everything again from a new slot; raise max_slot_wal_keep_size or keep the pipeline running",
			"slot %s is lost: %s", r.Name, r.LostWhy)
	}
	return nil
}

// State implements source.Source.
func (s *Source) State(ctx context.Context) (source.State, error) {
	ctx, done := context.WithTimeout(ctx, lookPatience)
	defer done()
	var st source.State
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		st = source.State{}
		var head string
		var standby bool
		var timeline int64
		// The timeline stands in the first eight digits of a log file's name; the control
		// file's is that of the last checkpoint, old for a moment after a promotion.
		err := conn.QueryRow(ctx, `
SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system()), current_database(),
       CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END::bigint,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text`).
			Scan(&standby, &st.System, &st.Database, &timeline, &head)
		if err != nil {
			return err
		}
		if standby {
			return &fault.Error{Kind: fault.Transient, Op: "the server is a standby (in recovery)",
				Remedy: "point source.dsn at the primary; with several hosts add target_session_attrs=read-write"}
		}
		st.Timeline = uint32(timeline)
		if st.Head, err = change.ParsePosition(head); err != nil {
			return err
		}
		slot, err := s.readSlot(ctx, conn)
		if err != nil {
			return err
		}
		st.Slot = slot.SlotState
		keep, err := readSlotNamed(ctx, conn, s.names.keep)
		if err != nil {
			return err
		}
		st.Keep = keep.kept()
		if err := conn.QueryRow(ctx, besideSQL, temporaryPrefix, s.cfg.AppName).Scan(&st.Beside); err != nil {
			return fmt.Errorf("look for slots of copies: %w", err)
		}
		have, err := readPublications(ctx, conn, s.names.publications())
		if err != nil {
			return err
		}
		for _, name := range s.names.publications() {
			if have[name] == nil {
				st.PublicationsMissing = append(st.PublicationsMissing, name)
			}
		}
		if s.names.ownPubs {
			if st.Published, err = readMembers(ctx, conn, s.names.publications()); err != nil {
				return err
			}
			if st.PublishedWhole, err = readMembers(ctx, conn, []string{s.names.main}); err != nil {
				return err
			}
		}
		if st.PublicationsMissing == nil && slot.refusal() == nil && !slot.Active {
			st.PublicationNewer, err = s.publicationNewer(ctx, conn)
		}
		return err
	})
	if err != nil {
		return source.State{}, fmt.Errorf("read the source's state: %w", err)
	}
	return st, nil
}

// publicationNewer finds out whether a publication was made after changes that the
// slot still has to deliver. Decoding reads the catalogue as it was at each
// change: at those changes the publication does not exist, so they can never be
// delivered (and from version 18 on would be left out with only a warning).
//
// A publication whose row is older than the slot's catalog_xmin is visible to
// everything the slot decodes: the usual case, and cheap. Otherwise (made while
// an old transaction was running, or its options altered since) only decoding
// tells: the first change is looked at without consuming it. A first transaction
// so big that the look takes long has got past the question.
func (s *Source) publicationNewer(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var settled bool
	err := conn.QueryRow(ctx, `
SELECT coalesce(bool_and(age(p.xmin) > age(s.catalog_xmin)), false)
FROM pg_publication p, pg_replication_slots s
WHERE s.slot_name = $1 AND p.pubname = ANY($2)`, s.names.slot, s.names.publications()).Scan(&settled)
	if err != nil {
		return false, fmt.Errorf("compare publications and slot: %w", err)
	}
	if settled {
		return false, nil
	}
	probe, err := s.connectNoting(ctx)
	if err != nil {
		return false, err
	}
	defer probe.close()
	_, err = probe.Exec(ctx, fmt.Sprintf(
		`SET statement_timeout = '5s'; SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, 1, 'proto_version', '1', 'publication_names', %s)`,
		literal(s.names.slot), literal(publicationList(s.names.publications())))).ReadAll()
	switch {
	case isState(err, "42704"), probe.skipped: // undefined object
		return true, nil
	case isState(err, "57014", "55006"): // took too long; in use by now
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at the slot's first change: %w", err)
	}
	return false, nil
}

// notingConn is a session that notices the server's warning that a publication was
// skipped.
type notingConn struct {
	*pgconn.PgConn
	skipped bool
}

func (s *Source) connectNoting(ctx context.Context) (*notingConn, error) {
	n := &notingConn{}
	c := s.config()
	c.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		if skippedPublication((*pgconn.PgError)(notice), s.names.publications()) {
			n.skipped = true
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		return nil, s.safe("connect to the source", err)
	}
	n.PgConn = conn
	return n, nil
}

func (n *notingConn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.Close(ctx)
}

// skippedPublication recognises the warning by which newer servers leave out a
// publication that does not exist at a place in the log (SQLSTATE 55000, or 42704
// as the older error had), in whatever language it comes.
func skippedPublication(n *pgconn.PgError, publications []string) bool {
	if n.Code != "55000" && n.Code != "42704" {
		return false
	}
	return slices.ContainsFunc(publications, func(p string) bool { return strings.Contains(n.Message, p) })
}

// newerRefusal is what to say about it.
func (s *Source) newerRefusal() error {
	return fault.Refuse("this slot can never be read with that publication: `tailrace run --overwrite` makes a new slot and copies everything again",
		"a publication of (%s) is newer than changes that slot %s still has to deliver", strings.Join(s.names.publications(), ", "), s.names.slot)
}

// Head implements source.Source: the end of the newest record whose transaction
// may have committed.
//
// The insert position is ahead of everything committed. Right behind a page's
// header it names the place of the next record, a little after the end of the
// last, which on an idle server nobody would ever reach; that is corrected. What
// is inserted but not flushed cannot be followed yet: a commit is flushed at once
// or (synchronous_commit off) within three rounds of the log writer, so what is
// still not flushed after a second holds no commit.
func (s *Source) Head(ctx context.Context) (change.Position, error) {
	var head change.Position
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		head = change.Position{}
		deadline := time.Now().Add(time.Second)
		for {
			var insertText, flushText string
			var page, file uint64
			err := conn.QueryRow(ctx, `
SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text, current_setting('wal_block_size')::bigint,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')`).Scan(&insertText, &flushText, &page, &file)
			if err != nil {
				return err
			}
			insert, err1 := change.ParsePosition(insertText)
			flush, err2 := change.ParsePosition(flushText)
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			if head.IsZero() {
				head = beforeHeader(insert, page, file)
			}
			if !flush.Before(head) {
				return nil
			}
			if time.Now().After(deadline) {
				head = flush
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	if err != nil {
		return change.Position{}, fmt.Errorf("read the end of the source's log: %w", err)
	}
	return head, nil
}

// beforeHeader moves a position right behind a page header to the page's start
// (xlog_internal.h: 24 bytes, 40 on a file's first page).
func beforeHeader(p change.Position, page, file uint64) change.Position {
	switch {
	case p.Offset%file == 40:
		return change.LSN(p.Offset - 40)
	case p.Offset%page == 24 && p.Offset%file != 24:
		return change.LSN(p.Offset - 24)
	}
	return p
}

// Drop implements source.Source. Objects that the user named stay.
func (s *Source) Drop(ctx context.Context) error {
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := s.dropKeep(ctx, conn); err != nil {
			return err
		}
		if s.names.ownSlot {
			if err := s.dropSlot(ctx, conn, s.names.slot); err != nil {
				return err
			}
		}
		if !s.names.ownPubs {
			return nil
		}
		have, err := readPublications(ctx, conn, s.names.publications())
		if err != nil {
			return err
		}
		var drops []string
		for _, name := range s.names.publications() {
			if have[name] != nil {
				drops = append(drops, "DROP PUBLICATION "+ident(name))
			}
		}
		if err := execDDL(ctx, conn, drops); err != nil {
			if isState(err, "42501") {
				return fault.Refuse("an administrator runs: "+strings.Join(drops, "; "), "may not drop the publications: %v", err)
			}
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove what the pipeline has on the source: %w", err)
	}
	return nil
}

// Release implements source.Source. The keep slot goes too, first: it keeps more.
func (s *Source) Release(ctx context.Context) error {
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := s.dropKeep(ctx, conn); err != nil {
			return err
		}
		return s.dropSlot(ctx, conn, s.names.slot)
	})
	if err != nil {
		return fmt.Errorf("let go of the source's log: %w", err)
	}
	return nil
}

// dropSlot drops a slot if it is there and of our make, ending our own session where
// one still holds it. It waits up to 10 s for that one to let go.
func (s *Source) dropSlot(ctx context.Context, conn *pgx.Conn, name string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		slot, err := readSlotNamed(ctx, conn, name)
		if err != nil || !slot.Exists {
			return err
		}
		if slot.Problem != "" {
			return slot.refusal()
		}
		if slot.Active {
			if err := s.endHolder(ctx, conn, slot); err != nil {
				return err
			}
		} else if _, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", slot.Name); err == nil {
			s.log.Info("dropped the slot", "slot", slot.Name)
			return nil
		} else if !isState(err, "55006") { // object in use
			return fmt.Errorf("drop slot %s: %w", slot.Name, err)
		}
		if time.Now().After(deadline) {
			return fault.Retry(err, "drop slot %s: session %d still holds it", slot.Name, slot.ActivePID)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// endHolder ends the session that holds a slot if it is one of ours, as far as we may.
func (s *Source) endHolder(ctx context.Context, conn *pgx.Conn, slot slotRow) error {
	_, err := conn.Exec(ctx, "SELECT pg_terminate_backend($1) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2",
		slot.ActivePID, s.cfg.AppName)
	if err != nil && !isState(err, "42501") {
		return fmt.Errorf("end the session that holds slot %s: %w", slot.Name, err)
	}
	return nil
}
