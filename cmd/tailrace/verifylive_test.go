package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// Beside a daemon under load both sides are compared at one position, again and again;
// the stream goes on meanwhile, and what was planted by hand is found.
func TestVerifyBesideADaemonUnderLoad(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Dedicated()) // a transaction that stays open concerns all databases of a server
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, balanced+";"+manyTypes+"; create table big(id int primary key, v text); insert into big select i, repeat('x', 200) from generate_series(1, 20000) i; create table log(v int); create table s(id int primary key, n int)",
			"flows: [{source: public.*, except: [public.s]}, {source: public.a, target: a_history, stored_as_scd_type: 2}, {source: public.s, sequence_by: n}]")
		p := r.start(t, nil)
		r.following(t, p)
		stop := r.balance(t)
		r.exec(t, "insert into log select generate_series(1, 50)", "insert into s values (1, 1), (2, 1)")
		out := r.must(t, "verify")
		if kind == "duckdb" { // elsewhere the asker looks now and then, and may miss it
			contains(t, out, "msg=comparing", "tables=7", "rows_read=")
		}
		contains(t, "\n"+out, "\n0 differences of ", "a_history: 0 differences of 5000", "log: 0 differences of 50", "s: 0 differences of 2 rows (keys compared with the remembered events")
		contains(t, r.must(t, "verify", "--table", "w"), "w: 0 differences of 2000 rows\n0 differences of 2000 rows\n")
		r.refused(t, 2, []string{"no flow has such a target"}, "verify", "--table", "nothing")
		before := r.confirmed(t)
		stop()
		p = r.plant(t, p, "update w set s = 'by hand' where id = 5", "delete from big where id = 7", "insert into a_history(id, v, \"__START_AT\") values (-1, 1, now())")
		stop = r.balance(t)
		out = r.refused(t, 1, []string{"w: 1 differences of 2000 rows", "values differ", "big: 1 differences of 20000", "missing in the destination", "a_history: 1 differences", "only in the destination", "3 differences of "}, "verify")
		if strings.Contains(out, "by hand") {
			t.Errorf("it prints values:\n%s", out)
		}
		stop()
		r.through(t, "insert into log values (0)")
		if r.confirmed(t) <= before && len(r.confirmed(t)) <= len(before) {
			t.Errorf("the stream has not gone on: %s, before %s", r.confirmed(t), before)
		}
		r.must(t, "pause")
		r.refused(t, 3, []string{"is paused since"}, "verify")
		r.must(t, "resume")
		// A transaction that stays open at the source keeps a snapshot waiting, and the
		// stream not for long.
		if kind == "postgres" {
			conn := r.server.Connect(t, r.source)
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), "begin; insert into log values (1)"); err != nil {
				t.Fatal(err)
			}
			r.refused(t, 4, []string{"no snapshot of the source within", "transactions are open", "taking a snapshot of the source"}, "verify")
			lsn := r.commit(t, "insert into s values (9, 9)")
			r.awaitMark(t, lsn, 20*time.Second)
			if _, err := conn.Exec(t.Context(), "commit"); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(p.output.String(), "will try again") {
			t.Errorf("a comparison counts as a fault:\n%s", tail(p.output.String()))
		}
		p.stop(t)
		out, code := r.command(t, nil, "verify")
		if code != 1 || !strings.Contains(out, "3 differences of ") {
			t.Errorf("without a daemon: exit %d\n%s", code, out)
		}
	})
}

// awaitMark waits until the mark has passed a position: confirmed is held back
// by an open transaction.
func (r *rig) awaitMark(t testing.TB, lsn string, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "the mark passes "+lsn, func() bool {
		return r.one(t, fmt.Sprintf("select '%s'::pg_lsn > '%s'::pg_lsn", r.state(t).Position, lsn)) == "t"
	})
}
