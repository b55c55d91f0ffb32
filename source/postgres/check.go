package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/fault"
	"tailrace/source"
)

// Check implements source.Source. An error means that it could not look; what it
// saw is in the findings.
func (s *Source) Check(ctx context.Context, followed []source.Followed) ([]source.Finding, error) {
	c := &checker{source: s}
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.findings = nil
		for _, look := range []func(context.Context, *pgx.Conn) error{
			c.server, c.slot, c.waits,
			func(ctx context.Context, conn *pgx.Conn) error { return c.tables(ctx, conn, followed) },
			func(ctx context.Context, conn *pgx.Conn) error { return c.publications(ctx, conn, followed) },
		} {
			if err := look(ctx, conn); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("check the source: %w", err)
	}
	if err := c.spool(); err != nil {
		return nil, fmt.Errorf("check the source: %w", err)
	}
	if err := c.replication(ctx); err != nil {
		return nil, fmt.Errorf("check the source: %w", err)
	}
	return c.findings, nil
}

type checker struct {
	source   *Source
	findings []source.Finding
	made     bool // the slot exists
}

func (c *checker) blocks(remedy, format string, args ...any) {
	c.findings = append(c.findings, source.Finding{Blocks: true, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (c *checker) warns(remedy, format string, args ...any) {
	c.findings = append(c.findings, source.Finding{What: fmt.Sprintf(format, args...), Remedy: remedy})
}

// refused turns an operator's error into a finding and gives back any other.
func (c *checker) refused(err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Kind == fault.Operator {
		what := f.Op
		if f.Err != nil {
			what += ": " + f.Err.Error()
		}
		c.blocks(f.Remedy, "%s", what)
		return nil
	}
	return err
}

// spool tries the folder for open transactions.
func (c *checker) spool() error {
	if !c.source.cfg.Streaming {
		return nil
	}
	s, err := c.source.openSpool()
	if err != nil {
		return c.refused(err)
	}
	return s.Close()
}

// server looks at settings and free places.
func (c *checker) server(ctx context.Context, conn *pgx.Conn) error {
	var standby bool
	var level string
	var patience int64
	var slots, maxSlots, senders, maxSenders int
	err := conn.QueryRow(ctx, `
SELECT pg_is_in_recovery(), current_setting('wal_level'),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> $1), current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_stat_replication r WHERE r.pid NOT IN
          (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NOT NULL)), current_setting('max_wal_senders')::int`,
		c.source.names.slot).Scan(&standby, &level, &patience, &slots, &maxSlots, &senders, &maxSenders)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if standby {
		c.blocks("point source.dsn at the primary; with several hosts add target_session_attrs=read-write", "the server is a standby")
	}
	if level != "logical" {
		c.blocks("ALTER SYSTEM SET wal_level = 'logical'; then restart the source", "wal_level is %s, not logical", level)
	}
	if slots >= maxSlots {
		c.blocks(fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = '%d'; then restart the source; or drop a slot nobody needs", slots+2),
			"all %d replication slots are taken", maxSlots)
	} else if slots+1 == maxSlots {
		c.warns(fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = '%d'; then restart the source", slots+2),
			"only one of %d replication slots is free: adding or copying a table again needs a second one for a while", maxSlots)
	}
	if senders >= maxSenders {
		c.blocks(fmt.Sprintf("ALTER SYSTEM SET max_wal_senders = '%d'; then restart the source", senders+2), "all %d places for replication connections are taken", maxSenders)
	}
	if patience == 0 {
		c.warns("ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf()",
			"wal_sender_timeout is 0: after a network failure the server keeps the dead connection, and with it the slot, for hours")
	}
	return nil
}

// slot finds out whether the slot is there. Whether it can still give everything
// after the mark is not for this room to say: checkpoint.Decide judges it, and a
// first start or a new copy makes it anew whatever it is.
func (c *checker) slot(ctx context.Context, conn *pgx.Conn) error {
	slot, err := c.source.readSlot(ctx, conn)
	c.made = slot.Exists
	return err
}

// waits looks for what would delay the making of a slot, and says what a copy
// holds up.
func (c *checker) waits(ctx context.Context, conn *pgx.Conn) error {
	if c.made {
		return nil
	}
	rows, err := conn.Query(ctx, `
SELECT format('session %s (%s, %s) has had a transaction open for %s s', pid, coalesce(nullif(application_name, ''), 'no name'),
              coalesce(state, 'unknown state'), extract(epoch FROM now() - xact_start)::int),
       format('wait for its end, or: SELECT pg_terminate_backend(%s)', pid)
FROM pg_stat_activity WHERE xact_start < now() - interval '60 s' AND backend_type = 'client backend' AND backend_xid IS NOT NULL
UNION ALL
SELECT format('prepared transaction %L has been waiting for %s s', gid, extract(epoch FROM now() - prepared)::int),
       format('in database %I: COMMIT PREPARED %L, or ROLLBACK PREPARED %L', database, gid, gid)
FROM pg_prepared_xacts`)
	if err != nil {
		return fmt.Errorf("read running transactions: %w", err)
	}
	var what, remedy string
	_, err = pgx.ForEachRow(rows, []any{&what, &remedy}, func() error {
		c.warns(remedy, "%s: making the slot waits until it ends", what)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read running transactions: %w", err)
	}
	return nil
}

// tables looks at each followed table.
func (c *checker) tables(ctx context.Context, conn *pgx.Conn, followed []source.Followed) error {
	oids := oidsFollowed(followed)
	tables, err := c.source.readTables(ctx, conn, oids)
	if err != nil {
		return err
	}
	hidden, err := readHidden(ctx, conn, oids)
	if err != nil {
		return err
	}
	byOID := map[uint32]*table{}
	for _, t := range tables {
		byOID[t.oid] = t
	}
	for _, f := range followed {
		t := byOID[f.Table.ID]
		if t == nil {
			c.blocks("take it out of the configuration", "table %s is no longer there", f.Table.Name)
			continue
		}
		if p := t.problem(); p != "" {
			c.blocks("mend it, or take the table out of the configuration", "table %s cannot be followed: %s", t.name, p)
			continue
		}
		if hidden[t.oid] {
			c.blocks(fmt.Sprintf("ALTER ROLE %s BYPASSRLS", ident(c.source.conn.User)), "row-level security hides rows of table %s from a copy", t.name)
		}
		switch v := t.judge(); {
		case f.AppendOnly && v.serves:
			c.warns("leave append_only out if they matter", "table %s is followed append-only: its UPDATEs and DELETEs are not seen", t.name)
		case f.AppendOnly:
			c.warns(v.remedy, "table %s is followed append-only, because %s: its UPDATEs and DELETEs are not seen", t.name, v.why)
		case !v.serves:
			c.blocks(v.remedy+"; or declare the flow append_only: true",
				"table %s cannot be followed with updates and deletes: %s", t.name, v.why)
		}
	}
	if !c.made && len(followed) > 0 {
		c.warns("plan no ALTER TABLE, TRUNCATE or VACUUM FULL during the first copy",
			"each table is read under an ACCESS SHARE lock while it is copied: DDL on it waits, and statements queue behind that")
	}
	return nil
}

// readHidden lists the tables of which a policy hides rows from our role.
func readHidden(ctx context.Context, conn *pgx.Conn, oids []uint32) (map[uint32]bool, error) {
	rows, err := conn.Query(ctx, `
SELECT c.oid FROM pg_class c, pg_roles r
WHERE c.oid = ANY($1) AND r.rolname = current_user AND c.relrowsecurity AND NOT (r.rolsuper OR r.rolbypassrls)
  AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE'))`, oids)
	if err != nil {
		return nil, fmt.Errorf("read row-level security: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("read row-level security: %w", err)
	}
	hidden := map[uint32]bool{}
	for _, oid := range found {
		hidden[oid] = true
	}
	return hidden, nil
}

// publications looks at what would be changed and whether we may.
func (c *checker) publications(ctx context.Context, conn *pgx.Conn, followed []source.Followed) error {
	var sound []source.Followed // the others have findings of their own
	tables, err := c.source.readTables(ctx, conn, oidsFollowed(followed))
	if err != nil {
		return err
	}
	good := map[uint32]*table{}
	for _, t := range tables {
		if t.problem() == "" {
			good[t.oid] = t
		}
	}
	for _, f := range followed {
		if t := good[f.Table.ID]; t != nil && (f.AppendOnly || t.judge().serves) {
			sound = append(sound, f)
		}
	}
	plan, err := c.source.plan(ctx, conn, sound)
	if err != nil {
		return c.refused(err)
	}
	if len(plan) == 0 {
		return nil
	}
	var create bool
	var foreign []string
	err = conn.QueryRow(ctx, `
SELECT has_database_privilege(current_database(), 'CREATE'),
       coalesce((SELECT array_agg(format('%I.%I', n.nspname, c.relname) ORDER BY 1) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE c.oid = ANY($1) AND NOT pg_has_role(c.relowner, 'USAGE')), '{}')::text[]`, oidsFollowed(sound)).Scan(&create, &foreign)
	if err != nil {
		return fmt.Errorf("read rights: %w", err)
	}
	if !create && strings.Contains(strings.Join(plan, ";"), "CREATE PUBLICATION") {
		c.blocks("an administrator runs: "+strings.Join(plan, "; "), "role %s may not create publications in this database (GRANT CREATE ON DATABASE)", c.source.conn.User)
	} else if len(foreign) > 0 {
		c.blocks("an administrator runs: "+strings.Join(plan, "; "), "only the owner of a table may publish it; role %s does not own %s",
			c.source.conn.User, abbreviate(strings.Join(foreign, ", ")))
	}
	return nil
}

func oidsFollowed(followed []source.Followed) []uint32 {
	oids := make([]uint32, len(followed))
	for i, f := range followed {
		oids[i] = f.Table.ID
	}
	return oids
}

// replication proves the right to replicate by doing it.
func (c *checker) replication(ctx context.Context) error {
	conn, err := c.source.connectReplication(ctx)
	if err != nil {
		if isState(err, "53300") { // no place free: found above
			return nil
		}
		return c.refused(err)
	}
	closeSoon(conn)
	return nil
}
