package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

var _ source.Querier = (*Source)(nil)

// queryPath is where a query finds names without a schema: PostgreSQL's own default,
// whatever the role's is. Operators and functions of extensions commonly are in public.
const queryPath = `SET LOCAL search_path = "$user", public`

// DescribeQuery implements source.Querier. The query is planned and begun, which finds
// missing rights too, but no row is asked for.
func (s *Source) DescribeQuery(ctx context.Context, query string) (*change.Table, error) {
	q, err := source.ReadQuery(query, false)
	if err != nil {
		return nil, err
	}
	var t *change.Table
	err = s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		fields, err := s.describeQuery(ctx, conn.PgConn(), q)
		if err != nil {
			return err
		}
		keys := make([]typeKey, len(fields))
		for i, f := range fields {
			keys[i] = typeKey{f.DataTypeOID, f.TypeModifier}
		}
		types, err := s.types.resolve(ctx, conn, keys)
		if err != nil {
			return err
		}
		t = &change.Table{Columns: make([]change.Column, len(fields))}
		for i, f := range fields {
			t.Columns[i] = change.Column{Name: f.Name, Type: types[keys[i]], Nullable: true}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("describe a query: %w", err)
	}
	return t, nil
}

func (s *Source) describeQuery(ctx context.Context, conn *pgconn.PgConn, q *source.Query) (fields []pgconn.FieldDescription, err error) {
	if err := conn.Exec(ctx, "BEGIN READ ONLY; "+queryPath).Close(); err != nil {
		return nil, err
	}
	defer func() {
		if e := conn.Exec(ctx, "ROLLBACK").Close(); err == nil {
			err = e
		}
	}()
	if fields, err = s.prepareQuery(ctx, conn, q); err != nil {
		return nil, err
	}
	const before, behind = "SELECT * FROM (", "\n) AS q LIMIT 0"
	if err := conn.Exec(ctx, before+q.Text+behind).Close(); err != nil {
		return nil, s.explainQuery(q, err, before)
	}
	return fields, nil
}

// prepareQuery lets the server judge the query by itself: that it is one statement, so
// that it can be put in parentheses. A domain comes as the type it is over.
func (s *Source) prepareQuery(ctx context.Context, conn *pgconn.PgConn, q *source.Query) ([]pgconn.FieldDescription, error) {
	p, err := conn.Prepare(ctx, "", q.Text, nil)
	switch {
	case err != nil:
		return nil, s.explainQuery(q, err, "")
	case len(p.ParamOIDs) > 0:
		return nil, fault.Refuse(source.QueryRemedy, "the query has a parameter ($1)")
	case len(p.Fields) == 0:
		return nil, fault.Refuse(source.QueryRemedy, "the query gives no columns")
	}
	seen := map[string]bool{}
	for _, f := range p.Fields {
		if seen[f.Name] {
			return nil, fault.Refuse("name each column of the query: ... AS name", "the query gives two columns with the name %s", f.Name)
		}
		seen[f.Name] = true
	}
	return p.Fields, nil
}

// explainQuery makes an operator's error of what the server says of a query that was sent
// behind before. What the server says of data, it says with values: of that the code is
// kept alone.
func (s *Source) explainQuery(q *source.Query, err error, before string) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || fault.KindOf(err) == fault.Transient {
		return err
	}
	where := ""
	if at := int(pg.Position) - 1 - utf8.RuneCountInString(before); pg.Position > 0 && at >= 0 {
		where = q.Place(byteOf(q.Text, at)) + ": "
	}
	if pg.Code == "42501" {
		remedy := "GRANT SELECT ON what the query reads TO " + ident(s.conn.User)
		if strings.Contains(pg.Message, "row-level security") {
			remedy = "ALTER ROLE " + ident(s.conn.User) + " BYPASSRLS"
		}
		return fault.Refuse(remedy, "the source refuses the query: %s%s", where, pg.Message)
	}
	switch pg.Code[:min(len(pg.Code), 2)] {
	case "42", "0A", "3F", "25":
		return fault.Refuse(source.QueryRemedy, "the source refuses the query: %s%s (SQLSTATE %s)", where, pg.Message, pg.Code)
	}
	what := queryFaults[pg.Code]
	if what == "" {
		what = "an error"
	}
	return fault.Refuse("correct the query, or the data that it reads", "the source cannot run the query: %s%s (SQLSTATE %s)", where, what, pg.Code)
}

// queryFaults are what commonly is wrong with data.
var queryFaults = map[string]string{
	"21000": "a subquery that gives more than one row where one is needed",
	"22001": "a text that is too long for its type",
	"22003": "a number out of the range of its type",
	"22007": "a text that is no date or time", "22008": "a date or time out of range",
	"22012": "a division by zero",
	"22P02": "a text that is no value of the type it is cast to",
	"P0001": "an error that a function raises",
}

// byteOf is where character at of text begins.
func byteOf(text string, at int) int {
	for i := range text {
		if at == 0 {
			return i
		}
		at--
	}
	return len(text)
}

// copyQuery copies the rows of a query.
func (n *snapshot) copyQuery(ctx context.Context, r source.CopyRequest, w io.Writer) (rows int64, err error) {
	if r.Binary || r.Range != nil || r.Keys != nil || r.Part != nil || r.StartAt != nil || len(r.Columns) == 0 {
		return 0, fault.Corrupted("a query was asked for in a way that is for tables")
	}
	q, err := source.ReadQuery(r.Query, false)
	if err != nil {
		return 0, err
	}
	conn, err := n.session(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { n.giveBack(conn, err == nil) }()
	err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT "+literal(n.name)+"; "+queryPath).Close()
	switch {
	case isState(err, "42704", "22023", "55000"): // the snapshot's holder is gone
		return 0, fault.Retry(err, "take the snapshot")
	case err != nil:
		return 0, fmt.Errorf("take the snapshot: %w", err)
	}
	fields, err := n.source.prepareQuery(ctx, conn, q)
	if err != nil {
		return 0, err
	}
	if err := sameColumns(r, fields); err != nil {
		return 0, err
	}
	before := "COPY (SELECT " + strings.Join(idents(r.Columns), ", ") + " FROM ("
	out := &meter{w: w}
	tag, err := conn.CopyTo(ctx, out, before+q.Text+"\n) AS q) TO STDOUT")
	if out.failed != nil {
		return 0, out.failed
	}
	if err != nil {
		return 0, n.source.explainQuery(q, err, before)
	}
	if err := allSeen(ctx, conn); err != nil {
		return 0, err
	}
	return tag.RowsAffected(), conn.Exec(ctx, "COMMIT").Close()
}

// sameColumns sees that the query gives what it was described with.
func sameColumns(r source.CopyRequest, fields []pgconn.FieldDescription) error {
	types := make(map[string]uint32, len(fields))
	for _, f := range fields {
		types[f.Name] = f.DataTypeOID
	}
	for _, name := range r.Columns {
		at := r.Table.Find(name)
		if at < 0 {
			return fault.Corrupted("column %s of a query was not described", name)
		}
		switch id, there := types[name]; {
		case !there:
			return fault.Retry(nil, "the query gives no column %s any more: it has to be described anew", name)
		case id != r.Table.Columns[at].Type.ID:
			return fault.Retry(nil, "the query gives column %s with another type than before: it has to be described anew", name)
		}
	}
	return nil
}

// allSeen makes sure that the snapshot could see the rows of every table that this
// transaction has read: see pin. Which those are the server knows by their locks, which
// end with the transaction and keep anything of the kind from happening since.
func allSeen(ctx context.Context, conn *pgconn.PgConn) error {
	result, err := conn.Exec(ctx, `SELECT count(*) FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (c.oid IS NULL OR c.relkind IN ('r', 'm') AND c.relfilenode <> 0 AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid))`).ReadAll()
	if err != nil {
		return fmt.Errorf("look for tables that changed: %w", err)
	}
	if string(result[0].Rows[0][0]) != "0" {
		return fault.Retry(nil, "a table that the query reads was made, truncated or rewritten after the snapshot, which cannot see its rows: a new snapshot is needed")
	}
	return nil
}
