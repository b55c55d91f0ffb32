package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"tailrace/internal/change"
	"tailrace/scd"
)

// What a user may do cannot be read with certainty: rights come by roles, by patterns of
// databases and hosts, and may be taken back in part. So the server is asked, by
// statements that need one right each and change nothing, whatever comes of them: an
// EXPLAIN, or what must fail after the right was looked at.
type probe struct{ right, sql string }

var (
	rowProbes = []probe{
		{"SELECT", "EXPLAIN SELECT * FROM %s"},
		{"INSERT", "EXPLAIN INSERT INTO %s () VALUES ()"},
		{"UPDATE", "EXPLAIN UPDATE %s SET a = NULL"},
		{"DELETE", "EXPLAIN DELETE FROM %s"},
	}
	createProbe    = probe{"CREATE", "CREATE TABLE %s (a int, a int)"}
	dropProbe      = probe{"DROP", "DROP TABLE %s"}
	temporaryProbe = probe{"CREATE TEMPORARY TABLES", "CREATE TEMPORARY TABLE %s (a int, a int)"}
	// It fails before it waits for anybody's transaction.
	alterProbe = probe{"ALTER", "ALTER TABLE %s DROP COLUMN `tailrace: there is no such column`"}
)

// probed is a table that is not there: rights to it are rights to its database.
const probed = "tailrace_probe"

// lacking asks which rights to a table the session's user lacks.
func (s *session) lacking(ctx context.Context, n change.Name, probes ...probe) (rights []string, err error) {
	for _, p := range probes {
		_, err := s.exec(ctx, fmt.Sprintf(p.sql, qualifiedName(n)))
		switch {
		case notPermitted(err):
			rights = append(rights, p.right)
		case err != nil && lostConnection(err):
			return nil, err
		}
	}
	return rights, nil
}

// permits remembers what was permitted: rights that are taken away later are missed where
// they are needed.
type permits struct {
	mu        sync.Mutex
	databases map[string]bool // in which tables may be made and filled
	book      [bookParts]bool
}

// bookPart is what of the bookkeeping a right is about.
type bookPart int

const (
	bookRows bookPart = iota
	bookTables
	bookTemporary
	bookPoints
	bookParts
)

func (p *permits) database(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.databases[name]
}

func (p *permits) addDatabase(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.databases == nil {
		p.databases = map[string]bool{}
	}
	p.databases[name] = true
}

func (p *permits) part(n bookPart) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.book[n]
}

func (p *permits) addPart(n bookPart) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.book[n] = true
}

// permitted finds what the user lacks for a target's table; r is nil where it is not
// there. It returns false where its rows may not be read.
func (w *Writer) permitted(ctx context.Context, s *session, p *planner, r *relation, alters bool) (bool, error) {
	probes, scope := rowProbes, qualifiedName(p.name)
	if alters {
		probes = append(probes[:len(probes):len(probes)], alterProbe)
	}
	if r == nil {
		probes, scope = append(probes[:len(probes):len(probes)], createProbe), quote(p.name.Schema)+".*"
		if w.permits.database(p.name.Schema) {
			return true, nil
		}
		lack, err := s.lacking(ctx, change.Name{Schema: p.name.Schema, Table: probed}, probes...)
		if err != nil {
			return false, err
		}
		if len(lack) == 0 {
			w.permits.addDatabase(p.name.Schema)
			return true, nil
		}
	}
	lack, err := s.lacking(ctx, p.name, probes...)
	if err != nil || len(lack) == 0 {
		return true, err
	}
	list := strings.Join(lack, ", ")
	p.block(fmt.Sprintf("GRANT %s ON %s TO %s;", list, scope, s.user), "user %s lacks %s on table %s", s.user, list, p.name)
	return lack[0] != "SELECT", nil
}

// permittedRows finds whether the user may read and write the bookkeeping, and make it
// where it is not there.
func (w *Writer) permittedRows(ctx context.Context, s *session, p *planner) (bool, error) {
	return w.permittedBook(ctx, s, p, bookRows, "marks", func() ([]probe, error) {
		there, err := bookTablesThere(ctx, s)
		if err != nil || len(there) == len(bookSQL) {
			return rowProbes, err
		}
		return append(rowProbes[:len(rowProbes):len(rowProbes)], createProbe), nil
	})
}

// permittedTables finds whether the user may make the tables in the bookkeeping that a
// target needs: of what it remembers, and for histories temporary ones, since their
// transactions may come in pieces.
func (w *Writer) permittedTables(ctx context.Context, s *session, p *planner, t *scd.Target, memory bool) (err error) {
	if memory {
		_, err = w.permittedBook(ctx, s, p, bookTables, probed, func() ([]probe, error) { return []probe{createProbe}, nil })
	}
	if err == nil && t.Kind == scd.Type2 && !t.Sequenced {
		_, err = w.permittedBook(ctx, s, p, bookTemporary, probed, func() ([]probe, error) { return []probe{temporaryProbe}, nil })
	}
	if err == nil {
		var points bool
		if points, err = w.hasPoints(ctx, s); points {
			err = w.permittedPoints(ctx, s, p)
		}
	}
	return err
}

// permittedPoints finds whether the user may make the tables of what is kept for rewind
// points, fill them, and drop them.
func (w *Writer) permittedPoints(ctx context.Context, s *session, p *planner) error {
	_, err := w.permittedBook(ctx, s, p, bookPoints, probed, func() ([]probe, error) {
		return append(rowProbes[:len(rowProbes):len(rowProbes)], createProbe, alterProbe, dropProbe, temporaryProbe), nil
	})
	return err
}

func (w *Writer) permittedBook(ctx context.Context, s *session, p *planner, part bookPart, table string, probes func() ([]probe, error)) (bool, error) {
	if w.permits.part(part) {
		return true, nil
	}
	list, err := probes()
	if err != nil {
		return false, err
	}
	lack, err := s.lacking(ctx, change.Name{Schema: "_tailrace", Table: table}, list...)
	if err != nil {
		return false, err
	}
	if len(lack) == 0 {
		w.permits.addPart(part)
		return true, nil
	}
	p.block(fmt.Sprintf("GRANT ALL PRIVILEGES ON `_tailrace`.* TO %s;", s.user), "user %s lacks %s on the tables of database _tailrace", s.user, strings.Join(lack, ", "))
	return false, nil
}

// account spells what CURRENT_USER() says as a GRANT does.
func account(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return literal(text)
	}
	return literal(text[:at]) + "@" + literal(text[at+1:])
}
