package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/source"
)

// rateLeast is how long the server must have counted the log it writes before what it
// writes in a window is told from that.
const rateLeast = time.Hour

// CheckKeep implements source.Keeper.
func (s *Source) CheckKeep(ctx context.Context, window time.Duration) ([]source.Finding, error) {
	c := &checker{source: s}
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.findings = nil
		slot, err := readSlotNamed(ctx, conn, s.names.keep)
		if err != nil {
			return err
		}
		for _, look := range []func(context.Context, *pgx.Conn) error{
			func(ctx context.Context, conn *pgx.Conn) error { return c.keepSlot(ctx, conn, slot) },
			c.keepRights, c.keepVersion,
			func(ctx context.Context, conn *pgx.Conn) error { return c.keepLimits(ctx, conn, slot, window) },
		} {
			if err := look(ctx, conn); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("check what rewind needs of the source: %w", err)
	}
	return c.findings, nil
}

// keepSlot looks at the keep slot, or for a place for it.
func (c *checker) keepSlot(ctx context.Context, conn *pgx.Conn, slot slotRow) error {
	switch {
	case slot.Problem != "":
		return c.refused(slot.refusal())
	case slot.Lost:
		c.warns("nothing has to be done for new points: the next one begins a new window; for what to change see the findings below",
			"slot %s, which keeps the log for rewind points, is lost: %s. The points of before cannot be replayed", slot.Name, slot.LostWhy)
		return nil
	case slot.Exists:
		return nil
	}
	var others, most int
	err := conn.QueryRow(ctx, "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> $1), current_setting('max_replication_slots')::int",
		c.source.names.slot).Scan(&others, &most)
	if err != nil {
		return fmt.Errorf("count the slots: %w", err)
	}
	if others+2 > most {
		c.blocks(fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = '%d'; then restart the source; or drop a slot nobody needs", others+3),
			"rewind needs a second replication slot, %s: %d of %d are taken by others", slot.Name, others, most)
	}
	return nil
}

// keepRights looks at the rights to copy, advance and drop slots.
func (c *checker) keepRights(ctx context.Context, conn *pgx.Conn) error {
	s := c.source
	var replicates, may bool
	err := conn.QueryRow(ctx, `
SELECT (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user),
       (SELECT bool_and(has_function_privilege('pg_catalog.' || f, 'EXECUTE')) FROM unnest($1::text[]) f)`, keepFunctions).Scan(&replicates, &may)
	if err != nil {
		return fmt.Errorf("read rights: %w", err)
	}
	if !may {
		c.blocks(s.keepGrants(), "role %s may not execute the functions that copy, advance and drop slots", s.conn.User)
		return nil
	}
	if replicates {
		return nil
	}
	// A managed service may give the right in another way. To advance a slot to nowhere is
	// refused in any case, but first for a missing right.
	_, err = conn.Exec(ctx, fmt.Sprintf("SELECT pg_replication_slot_advance(%s, '0/0')", literal(s.names.keep)))
	if isState(err, "42501") {
		return c.refused(s.keepRights(err))
	}
	return nil
}

// keepRepaired are the first releases, by major version, that advance a slot without
// letting go of rows of the catalogues that it still needs.
var keepRepaired = map[int]int{14: 18, 15: 13, 16: 9, 17: 5}

func (c *checker) keepVersion(ctx context.Context, conn *pgx.Conn) error {
	var number int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&number); err != nil {
		return fmt.Errorf("read the version: %w", err)
	}
	major, minor := number/10000, number%10000
	if least := keepRepaired[major]; minor < least {
		c.blocks(fmt.Sprintf("upgrade the source to PostgreSQL %d.%d or later, which is a restart", major, least),
			"PostgreSQL %d.%d lets go of old rows of the catalogues too early when a slot is advanced: what is replayed across an ALTER TABLE could fail or be read wrong", major, minor)
	}
	return nil
}

// keepLimits compares the window with what the server lets a slot keep.
func (c *checker) keepLimits(ctx context.Context, conn *pgx.Conn, slot slotRow, window time.Duration) error {
	var limit int64 // MiB; -1: none
	var idle *float64
	var written, counted float64
	err := conn.QueryRow(ctx, `
SELECT (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       extract(epoch FROM current_setting('idle_replication_slot_timeout', true)::interval)::float8,
       wal_bytes::float8, coalesce(extract(epoch FROM now() - stats_reset), 0)::float8 FROM pg_stat_wal`).Scan(&limit, &idle, &written, &counted)
	if err != nil {
		return fmt.Errorf("read how much log a slot may keep: %w", err)
	}
	needs := int64(-1) // MiB in a window
	about := ""
	if counted >= rateLeast.Seconds() {
		needs = int64(written/counted*window.Seconds())>>20 + 1
		about = fmt.Sprintf(", about %d MiB by what it has written on average in the last %s", needs, time.Duration(counted)*time.Second)
	}
	unbounded := ""
	if limit < 0 {
		unbounded = "; nothing bounds that (max_slot_wal_keep_size is -1): a pipeline that stands still can fill the source's disk"
	}
	c.warns("lower rewind.keep if that is too much", "slot %s keeps the log of the last %s on the source%s, and dead rows of the system catalogues for as long%s", slot.Name, window, about, unbounded)
	switch {
	case limit < 0 || needs >= 0 && needs <= limit:
	case needs < 0:
		c.warns("see that it is more log than the source writes in that time: ALTER SYSTEM SET max_slot_wal_keep_size = '...'; SELECT pg_reload_conf()",
			"the server gives up a slot that keeps more than %d MiB of log (max_slot_wal_keep_size), and the points of the last %s with it", limit, window)
	default:
		c.warns(fmt.Sprintf("ALTER SYSTEM SET max_slot_wal_keep_size = '%dMB'; SELECT pg_reload_conf(); or lower rewind.keep", needs+needs/2),
			"the server gives up a slot that keeps more than %d MiB of log (max_slot_wal_keep_size), and writes about %d MiB in %s: rewind points of before that cannot be replayed", limit, needs, window)
	}
	if idle != nil && *idle > 0 && *idle <= window.Seconds() {
		c.warns("ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
			"the server gives up a slot that was not used for %s (idle_replication_slot_timeout). The keep slot is used when a point is made: a pipeline that stands still for longer, or makes points less often, loses its window", time.Duration(*idle)*time.Second)
	}
	return nil
}
