package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"tailrace/internal/fault"
	"tailrace/source"
)

// A failover.
//
// A file and an offset say nothing on another server, the names of transactions (GTIDs)
// do. The server that takes over may be followed from the mark if it has executed every
// transaction that the mark stands for, and still holds in its log all others. Both are
// asked of the server before anything is changed.
//
// Its log may hold the transactions in another order: those of MariaDB's domains run past
// each other on a replica, and so do those of a MySQL replica with several workers. So
// there need not be one place that divides what the destination has from what it has
// not. We begin at the newest file before which everything is in the destination, and
// pass over each transaction that the mark holds, by its name. What is still to be passed
// over stands in the mark beside the position (resume.held) until all of it has come by.
//
// Positions begin anew with the server's file numbers. That is what a position's epoch is
// for: it grows by one, so that the order of everything written so far stays.

// Locate implements source.Locator.
func (s *Source) Locate(m source.Located) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marked = m
}

// epoch is the epoch of the positions on this server.
func (s *Source) epoch() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.marked.Position.Epoch
	if s.known != nil && s.marked.System != "" && s.marked.System != s.known.identity {
		e++
	}
	return e
}

// sameServer refuses a server that took the place of the mark's since State was asked:
// the next start looks at it anew.
func (s *Source) sameServer(identity string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marked.System != "" && s.marked.System != identity {
		return fault.Retry(nil, "read the log: the source is another server (%s) than a moment ago", identity)
	}
	return nil
}

// moved finds the mark's place in the log of a server that the mark was not made on; nil
// if there is nothing to be found.
func (s *Source) moved(ctx context.Context, f *server, files []logFile) (*source.Moved, error) {
	s.mu.Lock()
	m := s.marked
	s.mu.Unlock()
	if m.System == "" || m.Position.IsZero() || m.System == f.identity {
		return nil, nil
	}
	const anew = "`tailrace run --overwrite` copies everything again"
	r, err := parseResume(m.Resume)
	if m.Resume == "" || err == nil && r.gtids == "" && r.held == "" {
		return &source.Moved{Problem: "the mark holds no GTIDs that could be looked for there", Remedy: "point source.dsn at the server that the mark was made on, or " + anew}, nil
	}
	if err != nil {
		return nil, fault.Corrupted("read the mark's place in the log: %v", err)
	}
	if strings.Contains(r.gtids+r.held, ":") == f.mariaDB {
		return &source.Moved{Problem: "its GTIDs are of another kind: one of the two is a MariaDB and the other a MySQL", Remedy: "point source.dsn at a server of the mark's kind, or " + anew}, nil
	}
	has, err := r.has(f.mariaDB)
	if err != nil {
		return nil, fault.Corrupted("read the mark's GTIDs: %v", err)
	}
	lacks, purged, err := s.compare(ctx, f, has)
	if err != nil {
		return nil, err
	}
	if lacks != "" {
		applies, err := s.applies(ctx, f)
		if err != nil {
			return nil, err
		}
		return &source.Moved{Problem: "it lacks transactions that the destination has: " + lacks,
			Remedy: "if it will still receive them, try again later; if they were lost with the other server, the destination has what no server has any more: " + anew, Passing: applies}, nil
	}
	if purged != "" {
		return &source.Moved{Problem: "it has purged transactions that the destination does not have: " + purged,
			Remedy: "point source.dsn at a server that still has them in its log, or " + anew}, nil
	}
	for i := len(files) - 1; i >= 0; i-- {
		before, err := s.before(ctx, f, files[i].name)
		if err != nil {
			return nil, err
		}
		if !has.contains(&before) {
			continue
		}
		if !f.mariaDB { // what it never had in its log, as a server that was made from a copy of another
			var never string
			if err := s.db.QueryRowContext(ctx, "SELECT @@global.gtid_purged").Scan(&never); err != nil {
				return nil, s.explain(err, "read which GTIDs were purged")
			}
			set, err := parseGTIDs(false, never)
			if err != nil {
				return nil, fault.Corrupted("read which GTIDs were purged: %v", err)
			}
			before.addAll(&set)
		}
		at, err := s.positionOf(files[i].name, fileBegin)
		if err != nil {
			return nil, err
		}
		return &source.Moved{Position: at, Resume: resume{file: files[i].name, gtids: before.String(), held: has.String()}.String()}, nil
	}
	return &source.Moved{Problem: "its log begins behind transactions that the destination does not have: they were purged, or were never in it",
		Remedy: "point source.dsn at a server that still has them in its log, or " + anew}, nil
}

// compare returns which of the given transactions the server has not executed, and which
// others it has no longer in its log; of MariaDB only the former can be asked.
func (s *Source) compare(ctx context.Context, f *server, has gtids) (lacks, purged string, err error) {
	if !f.mariaDB {
		set := has.String()
		if err := s.db.QueryRowContext(ctx, "SELECT gtid_subtract(?, @@global.gtid_executed), gtid_subtract(@@global.gtid_purged, ?)", set, set).Scan(&lacks, &purged); err != nil {
			return "", "", s.explain(err, "compare the mark's GTIDs with the server's")
		}
		return strings.Map(withoutSpace, lacks), strings.Map(withoutSpace, purged), nil
	}
	var state sql.NullString
	if err := s.db.QueryRowContext(ctx, "SELECT @@global.gtid_binlog_state").Scan(&state); err != nil {
		return "", "", s.explain(err, "read the GTIDs of the server's log")
	}
	// The newest number of each domain and server.
	newest := map[string]gtids{}
	for part := range strings.SplitSeq(strings.Map(withoutSpace, state.String), ",") {
		one, err := parseGTIDs(true, part)
		if err != nil {
			return "", "", fault.Corrupted("read the GTIDs of the server's log: %v", err)
		}
		for _, p := range one.parts {
			newest[fmt.Sprint(p.origin, "-", p.server)] = one
		}
	}
	var missing []string
	for _, p := range has.parts {
		there := newest[fmt.Sprint(p.origin, "-", p.server)]
		if len(there.parts) == 0 || there.parts[0].ranges[0].to < p.ranges[0].to {
			missing = append(missing, fmt.Sprintf("%s-%d-%d", p.origin, p.server, p.ranges[0].to))
		}
	}
	return strings.Join(missing, ","), "", nil
}

// applies reports whether the server is a replica that applies what it has received.
func (s *Source) applies(ctx context.Context, f *server) (bool, error) {
	statement, column := "SHOW REPLICA STATUS", "Replica_SQL_Running"
	if f.mariaDB {
		statement, column = "SHOW ALL SLAVES STATUS", "Slave_SQL_Running"
	}
	rows, err := s.db.QueryContext(ctx, statement)
	if isCode(err, errPrivilege, errAccessDenied) {
		return false, nil // nobody will tell
	}
	if err != nil {
		return false, s.explain(err, "ask whether the server is a replica")
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return false, err
	}
	cells, into := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
	for i := range cells {
		into[i] = &cells[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return false, fmt.Errorf("ask whether the server is a replica: %w", err)
		}
		for i, c := range columns {
			if c == column && string(cells[i]) == "Yes" {
				return true, nil
			}
		}
	}
	return false, s.explain(rows.Err(), "ask whether the server is a replica")
}

// before reads which transactions lie before a file of the log: the file says it itself.
func (s *Source) before(ctx context.Context, f *server, file string) (gtids, error) {
	rows, err := s.db.QueryContext(ctx, "SHOW BINLOG EVENTS IN '"+strings.ReplaceAll(file, "'", "''")+"' LIMIT 4")
	if err != nil {
		return gtids{}, s.explain(err, "read the beginning of log file %s", file)
	}
	defer rows.Close()
	for rows.Next() {
		var name, typ, info string
		var from, id, to uint64
		if err := rows.Scan(&name, &from, &typ, &id, &to, &info); err != nil {
			return gtids{}, fmt.Errorf("read the beginning of log file %s: %w", file, err)
		}
		if typ == "Previous_gtids" || typ == "Gtid_list" {
			set, err := parseGTIDs(f.mariaDB, strings.Trim(info, "[]"))
			if err != nil {
				return gtids{}, fault.Corrupted("read the beginning of log file %s: %v", file, err)
			}
			return set, nil
		}
	}
	if err := rows.Err(); err != nil {
		return gtids{}, s.explain(err, "read the beginning of log file %s", file)
	}
	return gtids{mariaDB: f.mariaDB}, nil
}

// pass reports whether the destination has a transaction already, by its name, and
// refuses a log that does not go on where the mark ends.
func (f *follower) pass(id gtid) (bool, error) {
	if len(f.held.parts) == 0 {
		return false, nil
	}
	if id.n == 0 {
		return false, fault.Refuse("`tailrace run --overwrite` copies everything again",
			"the log of the server that took over has a transaction without GTID at %s: whether the destination has it cannot be told", f.at())
	}
	p := f.held.find(id.origin)
	if p == nil {
		return false, nil
	}
	if !f.held.mariaDB {
		return p.includes(id.n), nil
	}
	newest := p.ranges[0].to
	switch {
	case id.n < newest, id.n == newest && id.server == p.server:
		return true, nil
	case id.n == newest:
		return false, setBack(f.from, fmt.Sprintf("in place of transaction %s-%d-%d the server has %[1]s-%[4]d-%[3]d", id.origin, p.server, newest, id.server))
	case id.n > newest+1:
		return false, fault.Refuse("point source.dsn at a server that still has them in its log, or `tailrace run --overwrite` copies everything again",
			"the log goes on with transaction %s-%d-%d, but the destination ends with %[1]s-%[4]d-%[5]d: those in between are not in it", id.origin, id.server, id.n, p.server, newest)
	}
	return false, nil
}

// passed forgets what need not be passed over any more, after a transaction.
func (f *follower) passed(id gtid) {
	if len(f.held.parts) == 0 {
		return
	}
	if !f.held.mariaDB {
		if f.set.contains(&f.held) {
			f.held = gtids{}
		}
		return
	}
	if p := f.held.find(id.origin); p != nil && id.n >= p.ranges[0].to {
		f.held.drop(id.origin)
	}
}

// settle forgets what lies before the position that is begun at.
func (f *follower) settle() {
	if !f.facts.mariaDB {
		f.passed(gtid{})
		return
	}
	for _, p := range f.set.parts {
		if h := f.held.find(p.origin); h != nil && h.server == p.server && h.ranges[0].to == p.ranges[0].to {
			f.held.drop(p.origin)
		}
	}
}
