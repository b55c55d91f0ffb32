package main

import (
	"context"
	"errors"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/dbtest"
)

const crashSum = 1_000_000

// sums counts how often a reader of the destination saw both sides of all transfers.
type sums struct {
	reads atomic.Int64
	watch bool // files cannot be read beside the program
	t     *testing.T
}

// enoughSums is how often the sum must have been read while the program was killed.
const enoughSums = 100

// await waits until it was read often enough: on a slow machine the kills may have left
// no moment in which both sides were live.
func (s *sums) await() {
	for deadline := time.Now().Add(90 * time.Second); s.watch && s.reads.Load() < enoughSums && !s.t.Failed() && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *sums) enough(t *testing.T) {
	if n := s.reads.Load(); s.watch && n < enoughSums {
		t.Errorf("the sum was read only %d times", n)
	}
}

// watchSum reads what a reader of the destination sees until ctx ends: from the moment
// both tables are live, transfers are whole or not there.
func watchSum(ctx context.Context, t *testing.T, wg *sync.WaitGroup, r *rig) *sums {
	t.Helper()
	s := &sums{watch: r.dest.kind != "duckdb", t: t}
	if !s.watch {
		return s
	}
	live := "select count(*) from _tailrace.tables where " + r.ours(t) + " and target_table in ('left_side', 'right_side') and phase = 'live'"
	ask := r.dest.asker(t)
	wg.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
			n, err := ask(live)
			if notMade(err) {
				continue
			}
			if n == 2 && err == nil {
				n, err = ask("select (select sum(balance) from left_side) + (select sum(balance) from right_side)")
				if err == nil && n != crashSum {
					t.Errorf("a reader of the destination saw the sum %d, it is always %d", n, crashSum)
					return
				}
				s.reads.Add(1)
			}
			if err != nil {
				t.Errorf("reader: %v", err)
				return
			}
		}
	})
	return s
}

// asker asks a server for one number, in a session of its own.
func (d destination) asker(t *testing.T) func(query string) (int64, error) {
	t.Helper()
	if d.kind == "mysql" {
		db := dbtest.MySQL(t).Open(t, path.Base(d.dsn))
		return func(query string) (n int64, err error) { return n, db.QueryRow(query).Scan(&n) }
	}
	conn, err := pgx.Connect(context.Background(), d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return func(query string) (n int64, err error) {
		return n, conn.QueryRow(context.Background(), query).Scan(&n)
	}
}

// notMade says that an error is of a table or schema that is not there yet.
func notMade(err error) bool {
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000") || errors.As(err, &my) && (my.Number == 1146 || my.Number == 1049)
}
