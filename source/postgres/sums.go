package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/change/rowsum"
	"tailrace/internal/fault"
	"tailrace/source"
)

var _ source.Summer = (*snapshot)(nil)

// SumForm implements source.Summer.
func (n *snapshot) SumForm(ctx context.Context, r source.CopyRequest) (form string, err error) {
	err = n.read(ctx, r, func(conn *pgconn.PgConn, _ pinnedTable) error {
		result, err := conn.Exec(ctx, rowsum.TypesSQL(literal(fmt.Sprint(r.Table.ID))+"::oid")).ReadAll()
		if err != nil {
			return err
		}
		types := map[string]string{}
		for _, row := range result[0].Rows {
			types[string(row[0])] = string(row[1])
		}
		list := make([]string, len(r.Columns))
		for i, c := range r.Columns {
			list[i] = types[c]
		}
		form = rowsum.Form(conn.ParameterStatus("server_encoding"), list)
		return nil
	})
	return form, err
}

// Sum implements source.Summer.
func (n *snapshot) Sum(ctx context.Context, r source.CopyRequest, s rowsum.Sums, into []rowsum.Bucket) error {
	return n.read(ctx, r, func(conn *pgconn.PgConn, t pinnedTable) error {
		from := t.rows(r.Table.Name)
		if t.filter != "" {
			from += " WHERE (" + t.filter + ")"
		}
		if err := conn.Exec(ctx, sumMemory).Close(); err != nil {
			return err
		}
		rows := conn.ExecParams(ctx, s.SQL(idents(r.Columns), idents(r.KeyColumns), from), nil, nil, nil, nil)
		var bad error
		for rows.NextRow() {
			if err := s.Take(into, rows.Values()); err != nil && bad == nil {
				bad = fault.Corrupted("%v", err)
			}
		}
		_, err := rows.Close()
		if err == nil {
			err = bad
		}
		return err
	})
}

// sumMemory holds the sums of all buckets, some 300 bytes each.
const sumMemory = "SET LOCAL work_mem = '64MB'"

// read runs fn in a transaction of the snapshot, with the table pinned.
func (n *snapshot) read(ctx context.Context, r source.CopyRequest, fn func(*pgconn.PgConn, pinnedTable) error) (err error) {
	conn, err := n.session(ctx)
	if err != nil {
		return err
	}
	defer func() { n.giveBack(conn, err == nil) }()
	t, err := n.pin(ctx, conn, r.Table, nil)
	if err == nil {
		err = fn(conn, t)
	}
	if err == nil {
		err = conn.Exec(ctx, "COMMIT").Close()
	}
	if err != nil {
		return fmt.Errorf("sum up %s: %w", r.Table.Name, n.explainRead(r.Table, err))
	}
	return nil
}

func idents(names []string) []string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = ident(name)
	}
	return quoted
}
