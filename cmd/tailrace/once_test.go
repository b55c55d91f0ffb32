package main

import (
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// A once flow seeds a target from old rows, and a live flow carries on: per key, an
// event finds its place among the seeded ones by its sequence. The seed is read once;
// its table may go.
func TestASeedIsReadOnceAndTheLiveFlowCarriesOn(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table old(id int, v text, year int); create table live(id int, v text, year int); create table still(id int primary key);
insert into old values (1, 'old', 2020), (2, 'old', 2024); insert into still values (1)`, `flows:
  - {source: public.old, source_kind: feed, name: seed, once: true, target: h, stored_as_scd_type: 2, keys: [id], sequence_by: year, except_column_list: [year]}
  - {source: public.live, source_kind: feed, name: live, target: h, stored_as_scd_type: 2, keys: [id], sequence_by: year, except_column_list: [year]}
  - {source: public.still, once: true}`)
		r.once(t)
		r.exec(t, "insert into live values (1, 'new', 2023), (2, 'new', 2023)", "insert into old values (3, 'too late', 2020)", "insert into still values (2)")
		r.once(t)
		want := []string{"1|old|2020|2023", "1|new|2023|", "2|new|2023|2024", "2|old|2024|"}
		check := func() {
			t.Helper()
			_, rows := r.shown(t, "h")
			var got []string
			for _, row := range rows {
				if row[3] == null {
					row[3] = ""
				}
				got = append(got, strings.Join(row, "|"))
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if _, rows := r.shown(t, "still"); len(rows) != 1 {
				t.Fatalf("a table that is copied once has %d rows", len(rows))
			}
		}
		check()
		r.exec(t, "drop table old", "drop table still", "insert into live values (1, 'newer', 2025)")
		r.once(t)
		want[1] = "1|new|2023|2025"
		want = append(want[:2], append([]string{"1|newer|2025|"}, want[2:]...)...)
		check()
		if out := r.must(t, "status", "--check"); strings.Contains(out, "parked") {
			t.Errorf("parked:\n%s", out)
		}
	})
}
