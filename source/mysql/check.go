package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// Check implements source.Source. An error means that it could not look; what it saw is
// in the findings.
func (s *Source) Check(ctx context.Context, followed []source.Followed) ([]source.Finding, error) {
	c := &checker{source: s}
	f, err := s.readServer(ctx)
	if err != nil {
		return nil, err
	}
	if f.replica {
		copied := *f // the facts are shared
		if copied.replica, err = s.receives(ctx, f); err != nil {
			return nil, err
		}
		f = &copied
	}
	c.server(f)
	for _, look := range []func(context.Context) error{
		func(ctx context.Context) error { return c.rights(ctx, followed) },
		c.retention,
		func(ctx context.Context) error { return c.cascades(ctx, followed) },
	} {
		if err := c.refused(look(ctx)); err != nil {
			return nil, err
		}
	}
	c.names(followed)
	return c.findings, nil
}

type checker struct {
	source   *Source
	findings []source.Finding
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

// server judges the settings.
func (c *checker) server(f *server) {
	if err := f.refusal(); err != nil {
		c.refused(err) // it is an operator's
	}
	switch {
	case f.mariaDB && !f.atLeast(10, 6), !f.mariaDB && !f.atLeast(8, 0):
		c.warns("upgrade the source", "the server's version is %s; MariaDB from 10.6 and MySQL from 8.0 on are tested", f.version)
	}
	if f.image != "FULL" {
		c.warns("SET GLOBAL binlog_row_image = 'FULL' (and in the server's configuration)",
			"binlog_row_image is %s: columns that a statement did not change are not in the log. They keep their values in the destination, but histories and filters see less", f.image)
	}
	switch {
	case f.metadata == "":
		c.warns("", "the server does not log names and signs of columns: the catalogue is read for them, which may be newer than the log. Stop writing while a table is altered")
	case f.metadata != "FULL":
		c.warns("SET GLOBAL binlog_row_metadata = 'FULL' (and in the server's configuration)",
			"binlog_row_metadata is %s: the log has no names of columns and no labels of enums, so the catalogue is read for them, which may be newer. A table that is altered while a backlog waits has to be copied again", f.metadata)
	}
	if !f.mariaDB && f.gtidMode != "ON" {
		c.warns("turn gtid_mode on (the manual's \"Enabling GTID Transactions Online\")", "gtid_mode is %s: without GTIDs a lost or replaced log is recognised by names, sizes and times of its files alone", f.gtidMode)
	}
	if f.legacyPos == "OFF" || f.legacyPos == "0" {
		c.blocks("SET GLOBAL binlog_legacy_event_pos = ON (and in the server's configuration)", "binlog_legacy_event_pos is off: the log does not say where a transaction ends")
	}
	if f.replica {
		c.warns("set log_replica_updates (log_slave_updates) on this server and restart it", "this server is a replica itself, and what it receives is not in its log")
	}
}

// receives reports whether the server is a replica of another; of an account that may not
// ask, the answer is yes.
func (s *Source) receives(ctx context.Context, f *server) (bool, error) {
	statement := "SHOW REPLICA STATUS"
	if f.mariaDB {
		statement = "SHOW ALL SLAVES STATUS"
	}
	rows, err := s.db.QueryContext(ctx, statement)
	if isCode(err, errPrivilege, errAccessDenied) {
		return true, nil
	}
	if err != nil {
		return false, s.explain(err, "ask whether the server is a replica")
	}
	defer rows.Close()
	there := rows.Next()
	return there, s.explain(rows.Err(), "ask whether the server is a replica")
}

// rights tries what needs them, so that roles and proxies count too.
func (c *checker) rights(ctx context.Context, followed []source.Followed) error {
	s := c.source
	rows, err := s.db.QueryContext(ctx, "SHOW GRANTS")
	if err != nil {
		return s.explain(err, "read the account's rights")
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return fmt.Errorf("read the account's rights: %w", err)
		}
		all = append(all, strings.ToUpper(line))
	}
	if err := rows.Err(); err != nil {
		return s.explain(err, "read the account's rights")
	}
	has := func(right string) bool {
		return slices.ContainsFunc(all, func(line string) bool {
			privileges, on, _ := strings.Cut(line, " ON ")
			return strings.HasPrefix(on, "*.*") && (strings.Contains(privileges, right) || strings.Contains(privileges, "ALL PRIVILEGES"))
		})
	}
	roles := slices.ContainsFunc(all, func(line string) bool { return !strings.Contains(line, " ON ") })
	f, err := s.facts(ctx)
	if err != nil {
		return err
	}
	if !has("REPLICATION SLAVE") && !roles {
		c.blocks(s.grant("REPLICATION SLAVE", "*.*"), "the account may not read the log")
	}
	if _, _, _, err := s.status(ctx, s.db); err != nil {
		if err := c.refused(err); err != nil {
			return err
		}
	}
	if !roles && !has("RELOAD") && !has("FLUSH_TABLES") || s.cfg.SnapshotLock != LockAuto {
		c.locks(f, roles || everySchema(all, "LOCK TABLES", followed))
	}
	return nil
}

// everySchema reports whether lines of SHOW GRANTS, in capitals, give a right to the
// schemas of all tables. Patterns in them count for nothing.
func everySchema(grants []string, right string, tables []source.Followed) bool {
	for _, t := range tables {
		on := strings.ToUpper(quote(t.Table.Name.Schema)) + ".*"
		if !slices.ContainsFunc(grants, func(line string) bool {
			privileges, rest, _ := strings.Cut(line, " ON ")
			rest = strings.ReplaceAll(rest, `\`, "")
			return (strings.HasPrefix(rest, "*.*") || strings.HasPrefix(rest, on)) && (strings.Contains(privileges, right) || strings.Contains(privileges, "ALL PRIVILEGES"))
		}) {
			return false
		}
	}
	return true
}

// locks says how the sessions of a copy begin without a lock on everything: see
// snapshot.begin.
func (c *checker) locks(f *server, tables bool) {
	s := c.source
	why, better := "the account may not lock all of the source for a moment", s.grant("RELOAD", "*.*")
	if s.cfg.SnapshotLock != LockAuto {
		why, better = "source.snapshot_lock is "+s.cfg.SnapshotLock, "source.snapshot_lock: auto"
	}
	switch {
	case tables && s.cfg.SnapshotLock != LockNever:
		c.warns(better, "%s: a copy that needs a lock takes it on the followed tables (LOCK TABLES), and waits for all transactions that have written to them", why)
	case f.mariaDB:
		c.warns(s.lockRemedy(), "%s: a copy begins without a lock; if the server is so busy that the sessions do not find one moment, one session reads all tables", why)
	case f.gtidMode == "ON":
		c.warns(s.lockRemedy(), "%s: a copy begins without a lock, at a moment at which nothing commits; on a busy server none may be found, and the copy is refused", why)
	default:
		c.blocks(s.lockRemedy()+"; or turn gtid_mode on", "%s, and without GTIDs (gtid_mode is %s) the position of a snapshot cannot be known without a lock (FLUSH TABLES WITH READ LOCK)", why, f.gtidMode)
	}
}

// retention warns of a log that is kept for too short a time.
func (c *checker) retention(ctx context.Context) error {
	v, err := variables(ctx, c.source.db, "binlog_expire_logs_seconds", "expire_logs_days", "sync_binlog", "innodb_flush_log_at_trx_commit")
	if err != nil {
		return c.source.explain(err, "read how long the log is kept")
	}
	const day = 24 * 60 * 60
	var seconds int
	if _, err := fmt.Sscan(v["binlog_expire_logs_seconds"], &seconds); err == nil && seconds > 0 && seconds < day {
		c.warns("SET GLOBAL binlog_expire_logs_seconds = 604800", "the source keeps its log for %d seconds: a pipeline that is down for longer has to copy everything again", seconds)
	}
	if v["sync_binlog"] != "1" || v["innodb_flush_log_at_trx_commit"] != "1" {
		c.warns("SET GLOBAL sync_binlog = 1; SET GLOBAL innodb_flush_log_at_trx_commit = 1",
			"sync_binlog is %s and innodb_flush_log_at_trx_commit %s: after a crash of its host the source may have lost transactions that the destination has, which is noticed and refused", v["sync_binlog"], v["innodb_flush_log_at_trx_commit"])
	}
	return nil
}

const cascadesSQL = `SELECT constraint_schema, table_name, constraint_name, referenced_table_name, delete_rule, update_rule
FROM information_schema.referential_constraints
WHERE delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') ORDER BY 1, 2, 3`

// cascades warns of rows that the engine changes by itself: they are not in the log.
func (c *checker) cascades(ctx context.Context, followed []source.Followed) error {
	rows, err := c.source.db.QueryContext(ctx, cascadesSQL)
	if err != nil {
		return c.source.explain(err, "read the foreign keys")
	}
	defer rows.Close()
	for rows.Next() {
		var n change.Name
		var key, parent, onDelete, onUpdate string
		if err := rows.Scan(&n.Schema, &n.Table, &key, &parent, &onDelete, &onUpdate); err != nil {
			return fmt.Errorf("read the foreign keys: %w", err)
		}
		if slices.ContainsFunc(followed, func(f source.Followed) bool { return f.Table.Name == n }) {
			c.warns("have the application change the rows of "+n.String()+" itself; `tailrace verify` finds what is missing, `tailrace resync` repairs it",
				"foreign key %s of table %s on %s is ON DELETE %s ON UPDATE %s: the engine changes rows of %s by itself, and most versions of the server do not log that", key, n, parent, onDelete, onUpdate, n)
		}
	}
	return c.source.explain(rows.Err(), "read the foreign keys")
}

// names warns of tables whose names differ only by case.
func (c *checker) names(followed []source.Followed) {
	seen := map[string]change.Name{}
	for _, t := range followed {
		key := strings.ToLower(t.Table.Name.String())
		if other, twice := seen[key]; twice {
			c.warns("give one of the flows another target", "tables %s and %s differ only by case", other, t.Table.Name)
		}
		seen[key] = t.Table.Name
	}
}

// Watch implements source.Source: followed tables that are gone. What a statement in the
// log did to a table is noticed by Follow, at its place; this finds what was done with
// the log turned off.
func (s *Source) Watch(ctx context.Context) ([]source.Loss, error) {
	s.mu.Lock()
	var names []change.Name
	for n := range s.followed {
		names = append(names, n)
	}
	s.mu.Unlock()
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := s.db.QueryContext(ctx, "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type <> 'VIEW' AND table_schema NOT IN ("+systemSchemas+")")
	if err != nil {
		return nil, s.explain(err, "look for the followed tables")
	}
	defer rows.Close()
	there := map[change.Name]bool{}
	for rows.Next() {
		var n change.Name
		if err := rows.Scan(&n.Schema, &n.Table); err != nil {
			return nil, fmt.Errorf("look for the followed tables: %w", err)
		}
		there[n] = true
	}
	if err := rows.Err(); err != nil {
		return nil, s.explain(err, "look for the followed tables")
	}
	var losses []source.Loss
	for _, n := range names {
		if !there[n] {
			losses = append(losses, source.Loss{Table: n, ID: tableID(n), Reason: "the source has it no more", Remedy: "make it again, or take its flow out of the configuration"})
		}
	}
	slices.SortFunc(losses, func(a, b source.Loss) int { return strings.Compare(a.Table.String(), b.Table.String()) })
	return losses, nil
}
