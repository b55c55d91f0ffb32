package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// snapshot is the moment at which a slot begins, as the server exported it.
//
// The replication session that made the slot keeps the exported snapshot alive by
// doing nothing until Close. Each Copy runs on a session of its own, in a
// transaction that first takes that snapshot, so every table is read as it was at
// Position, whatever commits meanwhile. Sessions are kept for the next table; the
// transaction ends with each, so that no finished table stays locked.
type snapshot struct {
	source   *Source
	holder   *pgconn.PgConn
	slot     string
	name     string
	position change.Position
	clock    time.Time

	mu     sync.Mutex
	idle   []*pgconn.PgConn
	closed bool
}

// Begin implements source.Source.
func (s *Source) Begin(ctx context.Context) (source.Snapshot, error) {
	var exists bool
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		// To what lies before a copy nobody can go back.
		if err := s.dropKeep(ctx, conn); err != nil {
			return err
		}
		if s.names.ownSlot {
			return s.dropSlot(ctx, conn, s.names.slot)
		}
		slot, err := s.readSlot(ctx, conn)
		if err != nil || !slot.Exists {
			return err
		}
		exists = true
		return slot.refusal()
	})
	if err != nil {
		return nil, fmt.Errorf("prepare slot %s: %w", s.names.slot, err)
	}
	if exists {
		// A slot that the user made keeps the log from before now on; the snapshot of a
		// second, temporary one says where to begin inside it.
		return s.Snapshot(ctx)
	}
	return s.export(ctx, s.names.slot, false)
}

// Snapshot implements source.Source.
func (s *Source) Snapshot(ctx context.Context) (source.Snapshot, error) {
	return s.export(ctx, temporarySlot(), true)
}

func temporarySlot() string {
	var b [6]byte
	rand.Read(b[:])
	return temporaryPrefix + hex.EncodeToString(b[:])
}

// export makes a slot and holds its snapshot.
func (s *Source) export(ctx context.Context, slot string, temporary bool) (_ *snapshot, err error) {
	holder, err := s.connectReplication(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeSoon(holder)
		}
	}()
	clock, err := readClock(ctx, holder)
	if err != nil {
		return nil, err
	}
	waiting, done := context.WithCancel(ctx)
	defer done()
	go s.nameBlockers(waiting, holder.PID(), slot)

	made, err := pglogrepl.CreateReplicationSlot(ctx, holder, ident(slot), plugin, pglogrepl.CreateReplicationSlotOptions{
		Temporary: temporary, SnapshotAction: "EXPORT_SNAPSHOT", Mode: pglogrepl.LogicalReplication})
	if err != nil {
		return nil, s.explainCreate(slot, err)
	}
	position, err := change.ParsePosition(made.ConsistentPoint)
	if err != nil {
		return nil, fault.Corrupted("slot %s begins at no position: %v", slot, err)
	}
	s.log.Info("made a slot", "slot", slot, "position", position.String())
	return &snapshot{source: s, holder: holder, slot: slot, name: made.SnapshotName, position: position, clock: clock}, nil
}

func readClock(ctx context.Context, conn *pgconn.PgConn) (time.Time, error) {
	result, err := conn.Exec(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").ReadAll()
	if err != nil {
		return time.Time{}, fmt.Errorf("read the source's clock: %w", err)
	}
	var us int64
	if len(result) != 1 || len(result[0].Rows) != 1 {
		return time.Time{}, fault.Corrupted("the source's clock gave no row")
	}
	if _, err := fmt.Sscan(string(result[0].Rows[0][0]), &us); err != nil {
		return time.Time{}, fault.Corrupted("the source's clock gave no number")
	}
	return time.UnixMicro(us).UTC(), nil
}

// explainCreate gives the errors of slot creation their remedies.
func (s *Source) explainCreate(slot string, err error) error {
	switch {
	case isState(err, "55000"): // object not in prerequisite state
		return fault.Refuse("ALTER SYSTEM SET wal_level = 'logical'; then restart the source",
			"create slot %s: %v", slot, err)
	case isState(err, "53400"): // configuration limit exceeded
		return fault.Refuse("drop a slot that nobody needs (SELECT slot_name, active FROM pg_replication_slots), or "+
			"ALTER SYSTEM SET max_replication_slots = '...' (more than now), then restart the source", "create slot %s: %v", slot, err)
	case isState(err, "42710"): // duplicate object
		return fault.Retry(err, "create slot %s", slot)
	case isState(err, "42501"):
		return fault.Refuse(fmt.Sprintf("ALTER ROLE %s REPLICATION", ident(s.conn.User)), "create slot %s: %v", slot, err)
	}
	return fmt.Errorf("create slot %s: %w", slot, err)
}

// nameBlockers tells, while a slot is being made, which sessions it waits for: it
// must see every transaction end that was running when it began.
func (s *Source) nameBlockers(ctx context.Context, pid uint32, slot string) {
	wait := 10 * time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = 30 * time.Second
		var who string
		err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `
SELECT coalesce(string_agg(format('pid %s (%s, %s, transaction open for %s s)', pid, coalesce(nullif(application_name, ''), 'no name'),
         coalesce(state, 'unknown state'), extract(epoch FROM now() - xact_start)::int), '; '), 'unknown sessions')
FROM pg_stat_activity WHERE pid = ANY(pg_blocking_pids($1))`, pid).Scan(&who)
		})
		if err == nil {
			s.log.Warn("making the slot waits for older transactions to end", "slot", slot, "waits_for", who)
		}
	}
}

func closeSoon(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
}

func (n *snapshot) Position() change.Position { return n.position }
func (n *snapshot) Clock() time.Time          { return n.clock }

// Copy implements source.Snapshot. The server's bytes go to w as they come.
func (n *snapshot) Copy(ctx context.Context, r source.CopyRequest, w io.Writer) (int64, error) {
	if r.Query != "" {
		rows, err := n.copyQuery(ctx, r, w)
		if err != nil {
			return 0, fmt.Errorf("copy the rows of a query: %w", err)
		}
		return rows, nil
	}
	rows, err := n.copy(ctx, r, w)
	if err != nil {
		return 0, fmt.Errorf("copy %s: %w", r.Table.Name, err)
	}
	return rows, nil
}

func (n *snapshot) copy(ctx context.Context, r source.CopyRequest, w io.Writer) (rows int64, err error) {
	conn, err := n.session(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { n.giveBack(conn, err == nil) }()
	var part *blockRange
	if r.Range != nil {
		part = r.Range.At.(*blockRange)
	}
	t, err := n.pin(ctx, conn, r.Table, part)
	if err != nil {
		return 0, err
	}
	out := &meter{w: w}
	tag, err := conn.CopyTo(ctx, out, copyStatement(r, t))
	if out.failed != nil {
		return 0, out.failed
	}
	if err != nil {
		return 0, n.explainRead(r.Table, err)
	}
	_, err = conn.Exec(ctx, "COMMIT").ReadAll()
	return tag.RowsAffected(), err
}

// explainRead gives what a role may not read its remedy.
func (n *snapshot) explainRead(t *change.Table, err error) error {
	switch {
	case isState(err, "42501") && strings.Contains(err.Error(), "row"):
		return fault.Refuse(fmt.Sprintf("ALTER ROLE %s BYPASSRLS", ident(n.source.conn.User)), "row-level security would hide rows: %v", err)
	case isState(err, "42501"):
		return fault.Refuse("GRANT SELECT ON "+qualified(t.Name)+" TO "+ident(n.source.conn.User), "%v", err)
	}
	return err
}

// meter remembers the writer's own error, which the driver's hides.
type meter struct {
	w      io.Writer
	failed error
}

func (m *meter) Write(b []byte) (int, error) {
	n, err := m.w.Write(b)
	if err != nil {
		m.failed = err
	}
	return n, err
}

// pinned is a table as the snapshot's transaction sees it.
type pinnedTable struct {
	kind   string
	filter string // the row filter of a named publication
	part   *blockRange
}

// pin begins a transaction on the snapshot, locks the table against changes of its
// shape, and makes sure that the snapshot can see its rows: a TRUNCATE or an ALTER
// TABLE that rewrites it, committed since the snapshot, leaves a new file whose
// rows the snapshot sees none of. The catalogue read by a query is the snapshot's;
// pg_relation_filenode gives today's file. Of a table copied in ranges the same is
// asked for each: between two of them it is not locked.
func (n *snapshot) pin(ctx context.Context, conn *pgconn.PgConn, t *change.Table, part *blockRange) (pinnedTable, error) {
	table := literal(fmt.Sprint(t.ID))
	tree := "NULL"
	if part != nil && part.tree != "" {
		tree = treeOf(table)
	}
	begin := "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT " + literal(n.name) +
		"; LOCK TABLE " + qualified(t.Name) + " IN ACCESS SHARE MODE" +
		"; SELECT c.relkind, (SELECT count(*) FROM pg_partition_tree(" + table + "::oid::regclass) p JOIN pg_class l ON l.oid = p.relid" +
		" WHERE l.relfilenode <> 0 AND l.relfilenode IS DISTINCT FROM pg_relation_filenode(l.oid))" +
		" + CASE WHEN c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid) THEN 1 ELSE 0 END, " + tree +
		" FROM pg_class c WHERE c.oid = " + table + "::oid AND c.oid = " + literal(qualified(t.Name)) + "::regclass"
	result, err := conn.Exec(ctx, begin).ReadAll()
	switch {
	case isState(err, "42704", "22023", "55000") && len(result) < 2: // the snapshot's holder is gone
		return pinnedTable{}, fault.Retry(err, "take the snapshot")
	case isState(err, "42P01", "3F000"):
		return pinnedTable{}, fault.Refuse("take it out of the configuration, or start the copy again", "the table was dropped or renamed after the snapshot")
	case isState(err, "42501"):
		return pinnedTable{}, fault.Refuse("GRANT SELECT ON "+qualified(t.Name)+" TO "+ident(n.source.conn.User)+" (and USAGE on its schema)", "%v", err)
	case err != nil:
		return pinnedTable{}, fmt.Errorf("take the snapshot: %w", err)
	}
	rows := result[len(result)-1].Rows
	if len(rows) != 1 {
		return pinnedTable{}, fault.Retry(nil, "the table was dropped, renamed or made anew after the snapshot")
	}
	if string(rows[0][1]) != "0" {
		return pinnedTable{}, fault.Retry(nil, "the table was truncated or rewritten after the snapshot, which cannot see its rows: a new snapshot is needed")
	}
	if part != nil && string(rows[0][2]) != part.tree {
		return pinnedTable{}, fault.Retry(nil, "partitions were attached or detached during the copy: a new snapshot is needed")
	}
	if part != nil {
		// The ranges are read in the order of the file, whatever the planner's guesses.
		if _, err := conn.Exec(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL max_parallel_workers_per_gather = 0").ReadAll(); err != nil {
			return pinnedTable{}, fmt.Errorf("prepare to read a range: %w", err)
		}
	}
	p := pinnedTable{kind: string(rows[0][0]), part: part}
	if !n.source.names.ownPubs && versionOf(conn) >= 15 {
		p.filter, err = n.rowFilter(ctx, conn, t)
	}
	return p, err
}

// rowFilter reads the condition under which a named publication sends a table's
// rows: the copy must follow the same rule as the log.
func (n *snapshot) rowFilter(ctx context.Context, conn *pgconn.PgConn, t *change.Table) (string, error) {
	result, err := conn.Exec(ctx, fmt.Sprintf(
		"SELECT rowfilter FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s AND rowfilter IS NOT NULL",
		literal(n.source.names.main), literal(t.Name.Schema), literal(t.Name.Table))).ReadAll()
	if err != nil {
		return "", fmt.Errorf("read the publication's row filter: %w", err)
	}
	if rows := result[0].Rows; len(rows) == 1 {
		return string(rows[0][0]), nil
	}
	return "", nil
}

// copyStatement writes the COPY. The rows of a table with heirs are its own only,
// as in the log; a partitioned table's are those of its partitions.
func copyStatement(r source.CopyRequest, t pinnedTable) string {
	columns := idents(r.Columns)
	list := strings.Join(columns, ", ")
	format := ""
	if r.Binary {
		format = " (FORMAT binary)"
	}
	if t.kind == "r" && t.filter == "" && r.StartAt == nil && t.part == nil && r.Keys == nil && r.Part == nil && len(columns) > 0 {
		return "COPY " + qualified(r.Table.Name) + " (" + list + ") TO STDOUT" + format
	}
	if r.StartAt != nil {
		start := "-infinity"
		if !r.StartAt.IsZero() {
			start = r.StartAt.UTC().Format("2006-01-02 15:04:05.999999+00")
		}
		if list != "" {
			list += ", "
		}
		list += "timestamptz " + literal(start) + ", NULL::timestamptz"
	}
	var where []string
	if t.filter != "" {
		where = append(where, "("+t.filter+")")
	}
	from := t.rows(r.Table.Name)
	if t.part != nil {
		from = "ONLY " + qualified(t.part.leaf)
		if within := bounds(t.part); within != "" {
			where = append(where, within)
		}
	}
	if r.Keys != nil {
		where = append(where, keyCondition(r.KeyColumns, r.Keys))
	}
	if r.Part != nil {
		where = append(where, r.Part.Condition(columns, idents(r.KeyColumns)))
	}
	if len(where) > 0 {
		from += " WHERE " + strings.Join(where, " AND ")
	}
	return "COPY (SELECT " + list + " FROM " + from + ") TO STDOUT" + format
}

// rows is the table as the log sees it.
func (t pinnedTable) rows(name change.Name) string {
	if t.kind == "r" {
		return "ONLY " + qualified(name)
	}
	return qualified(name)
}

// keyCondition looks for rows with one of the keys. The constants take the columns'
// types, so that an index finds them.
func keyCondition(columns []string, keys [][]*string) string {
	if len(keys) == 0 {
		return "false"
	}
	if len(columns) == 1 && !slices.ContainsFunc(keys, func(k []*string) bool { return k[0] == nil }) {
		list := make([]string, len(keys))
		for i, k := range keys {
			list[i] = literal(*k[0])
		}
		return ident(columns[0]) + " IN (" + strings.Join(list, ", ") + ")"
	}
	list := make([]string, len(keys))
	for i, k := range keys {
		parts := make([]string, len(columns))
		for c, name := range columns {
			if k[c] == nil {
				parts[c] = ident(name) + " IS NULL"
			} else {
				parts[c] = ident(name) + " = " + literal(*k[c])
			}
		}
		list[i] = strings.Join(parts, " AND ")
	}
	return "(" + strings.Join(list, " OR ") + ")"
}

// session takes an idle session or opens one.
func (n *snapshot) session(ctx context.Context) (*pgconn.PgConn, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, errors.New("the snapshot is closed")
	}
	if last := len(n.idle) - 1; last >= 0 {
		conn := n.idle[last]
		n.idle = n.idle[:last]
		n.mu.Unlock()
		return conn, nil
	}
	n.mu.Unlock()
	conn, err := pgconn.ConnectConfig(ctx, n.source.config())
	if err != nil {
		return nil, n.source.safe("connect to the source", err)
	}
	return conn, nil
}

// giveBack keeps a session whose transaction has ended well, and closes another.
func (n *snapshot) giveBack(conn *pgconn.PgConn, good bool) {
	n.mu.Lock()
	keep := good && !n.closed && !conn.IsClosed()
	if keep {
		n.idle = append(n.idle, conn)
	}
	n.mu.Unlock()
	if !keep {
		closeSoon(conn)
	}
}

// Close implements source.Snapshot. A temporary slot ends with it.
func (n *snapshot) Close(ctx context.Context) error {
	n.mu.Lock()
	idle := n.idle
	n.idle, n.closed = nil, true
	n.mu.Unlock()
	for _, conn := range idle {
		closeSoon(conn)
	}
	return n.holder.Close(ctx)
}
