package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/source"
)

// verdict is whether a table's replica identity serves updates and deletes. The
// server refuses the application's UPDATE and DELETE on a table that is in a
// publication of these and whose identity does not serve; so such a table is
// never put into one.
type verdict struct {
	serves  bool
	columns []int16 // that identify a row; nil for FULL
	why     string  // why not
	remedy  string  // the statement that mends it
}

// judge decides it as the server does (relcache.c, RelationGetIndexList), and for
// a partitioned table for each leaf too: it is the leaf whose identity the server
// checks and logs. A leaf must log what the root's key asks for.
func (t *table) judge() verdict {
	v := t.judgeAlone()
	if !v.serves {
		return v
	}
	for _, l := range t.leaves {
		lv := l.judgeAlone()
		full := l.identity == change.IdentityFull
		switch {
		case !lv.serves:
			return verdict{why: fmt.Sprintf("partition %s: %s", l.name, lv.why), remedy: lv.remedy}
		case full:
		case t.identity == change.IdentityFull:
			return verdict{why: fmt.Sprintf("partition %s does not log whole old rows as its root does", l.name),
				remedy: "ALTER TABLE " + qualified(l.name) + " REPLICA IDENTITY FULL"}
		case !sameNames(l.names(lv.columns), t.names(v.columns)):
			return verdict{why: fmt.Sprintf("partition %s identifies rows by (%s), its root by (%s)", l.name,
				strings.Join(l.names(lv.columns), ", "), strings.Join(t.names(v.columns), ", ")),
				remedy: "ALTER TABLE " + qualified(l.name) + " REPLICA IDENTITY FULL"}
		}
	}
	return v
}

func (t *table) judgeAlone() verdict {
	switch t.identity {
	case change.IdentityFull:
		return verdict{serves: true}
	case change.IdentityIndex:
		for _, i := range t.indexes {
			if i.identity && i.serves {
				return verdict{serves: true, columns: i.columns}
			}
		}
		return verdict{why: "its replica identity names an index that is gone or does not serve",
			remedy: "ALTER TABLE " + qualified(t.name) + " REPLICA IDENTITY " + t.bestIdentity()}
	case change.IdentityNothing:
		return verdict{why: "its replica identity is NOTHING",
			remedy: "ALTER TABLE " + qualified(t.name) + " REPLICA IDENTITY " + t.bestIdentity()}
	}
	for _, i := range t.indexes {
		switch {
		case i.primary && i.serves:
			return verdict{serves: true, columns: i.columns}
		case i.primary && i.deferred:
			return verdict{why: "its primary key is deferrable, which a replica identity may not be",
				remedy: "ALTER TABLE " + qualified(t.name) + " REPLICA IDENTITY FULL"}
		}
	}
	return verdict{why: "it has no primary key", remedy: "ALTER TABLE " + qualified(t.name) +
		" ADD PRIMARY KEY (...); -- or ALTER TABLE " + qualified(t.name) + " REPLICA IDENTITY FULL"}
}

// bestIdentity is what to recommend: the primary key where it can serve.
func (t *table) bestIdentity() string {
	for _, i := range t.indexes {
		if i.primary && i.serves {
			return "DEFAULT"
		}
	}
	return "FULL"
}

func sameNames(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// Watch looks for tables in the main publication whose replica identity no longer
// serves, so that their UPDATE and DELETE statements fail on the source, and takes
// them out if the publication is ours. It is one catalogue question when nothing
// is wrong; call it every 15 s.
func (s *Source) Watch(ctx context.Context) ([]source.Loss, error) {
	ctx, done := context.WithTimeout(ctx, lookPatience)
	defer done()
	var losses []source.Loss
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		losses = nil
		published, err := readPublished(ctx, conn, s.names.main)
		if err != nil || len(published) == 0 {
			return err
		}
		tables, err := s.readTables(ctx, conn, published)
		if err != nil {
			return err
		}
		for _, t := range tables {
			v := t.judge()
			if v.serves {
				continue
			}
			loss := source.Loss{Table: t.name, ID: t.oid, Reason: v.why, Remedy: v.remedy}
			if s.names.ownPubs {
				drop := "ALTER PUBLICATION " + ident(s.names.main) + " DROP TABLE ONLY " + qualified(t.name)
				if err := execDDL(ctx, conn, []string{drop}); err != nil {
					s.log.Warn("cannot take a table out of the publication", "table", t.name.String(),
						"publication", s.names.main, "error", err)
					loss.Remedy = drop + "; " + loss.Remedy
				} else {
					loss.Removed = true
				}
			}
			losses = append(losses, loss)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for lost replica identities: %w", err)
	}
	return losses, nil
}

// readPublished lists the tables that a publication names itself.
func readPublished(ctx context.Context, conn *pgx.Conn, publication string) ([]uint32, error) {
	result, err := conn.Query(ctx, `
SELECT r.prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = $1 AND (p.pubupdate OR p.pubdelete)`, publication)
	if err != nil {
		return nil, fmt.Errorf("read publication %s: %w", publication, err)
	}
	oids, err := pgx.CollectRows(result, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("read publication %s: %w", publication, err)
	}
	return oids, nil
}

// readMembers lists the tables that any of the publications names itself; never nil.
func readMembers(ctx context.Context, conn *pgx.Conn, publications []string) ([]uint32, error) {
	result, err := conn.Query(ctx, `
SELECT DISTINCT r.prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = ANY($1)`, publications)
	if err != nil {
		return nil, fmt.Errorf("read the publications: %w", err)
	}
	oids, err := pgx.CollectRows(result, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("read the publications: %w", err)
	}
	return append([]uint32{}, oids...), nil
}

// ddlPatience bounds how long a statement of ours waits for a table's lock, and
// with it how long others queue behind us.
const ddlPatience = "10s"

// execDDL runs statements in one transaction.
func execDDL(ctx context.Context, conn *pgx.Conn, statements []string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+ddlPatience+"'"); err != nil {
			return err
		}
		for _, sql := range statements {
			if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("run %s: %w", abbreviate(sql), err)
			}
		}
		return nil
	})
}

// abbreviate keeps a statement readable in a message.
func abbreviate(sql string) string {
	const limit = 200
	if len(sql) <= limit {
		return sql
	}
	return strings.ToValidUTF8(sql[:limit], "") + "..."
}

// isState reports whether err is a server's error with one of these SQLSTATEs.
func isState(err error, codes ...string) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && slices.Contains(codes, state.SQLState())
}
