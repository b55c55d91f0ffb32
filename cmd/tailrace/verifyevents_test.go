package main

import (
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// verify compares a target of a flow with a sequence with what the remembered events
// say that it holds, and finds what was done to it by hand.
func TestVerifyComparesWithTheRememberedEvents(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		const common = `keys: [k, at], sequence_by: seq, apply_as_deletes: "op = 'D'", except_column_list: [op, seq]`
		r := newRig(t, server, kind, `create table feed (k float8, at timestamptz, v text, n numeric(12,3), raw bytea, doc jsonb, tags text[], d date, b bool, u uuid, c char(5), op text, seq int);
insert into feed select i + 0.1, '2024-01-01 00:00:00+02', 'v' || i, i / 3.0, decode(lpad(to_hex(i), 4, '0'), 'hex'), json_build_object('b', i, 'a', 1.50)::jsonb, array['x', null, i::text], '0044-03-15', i % 2 = 0, gen_random_uuid(), 'c', 'U', i from generate_series(1, 300) i;
insert into feed select i + 0.1, '2024-01-01 00:00:00+02', null, null, null, null, null, null, null, null, null, case when i % 3 = 0 then 'D' else 'U' end, i + 1000 from generate_series(1, 300, 5) i`, `flows:
  - {source: public.feed, source_kind: feed, target: whole, `+common+`, apply_as_truncates: "op = 'T'"}
  - {source: public.feed, source_kind: feed, target: sparse, `+common+`, ignore_null_updates: true}
  - {source: public.feed, source_kind: feed, target: past, stored_as_scd_type: 2, `+common+`}`)
		r.once(t)
		r.exec(t, `insert into feed select k, at, 'late', n, raw, doc, tags, d, b, u, c, 'U', 0 from feed where seq < 50`,
			`insert into feed values (77, '2024-01-01', 'x', -0.001, null, '"text"', '{}', '9999-12-31', null, null, '', 'D', 2000)`,
			`insert into feed values (77, '2024-01-01', 'x', 1.1, null, '"text"', '{}', '9999-12-31', null, null, '', 'U', 2001)`)
		r.once(t)
		contains(t, r.must(t, "verify"), "whole: 0 differences of 281 rows (keys compared", "sparse: 0 differences of 281 rows (keys and columns compared", "past: 0 differences of")
		r.exec(t, `insert into feed values (1, '2024-01-01', 'T', 1, null, null, null, null, null, null, null, 'T', 20)`)
		r.once(t)
		r.must(t, "verify")

		instant := "'2023-12-31 22:00:00+00'"
		if kind == "mysql" {
			instant = "'2023-12-31 22:00:00'"
		}
		key := func(n string) string { return "k=" + n + " at=2023-12-31 22:00:00+00" }
		for target, edits := range map[string][][2]string{ // statement, and what verify says of it
			"whole": {
				{"delete from whole where k = 100.1", key("100.1") + ": missing in the destination"},
				{"insert into whole (k, \"at\") values (5000, " + instant + ")", key("5000") + ": only in the destination"},
			},
			"sparse": {
				{"update sparse set v = 'secret' where k = 102.1", key("102.1") + ": values differ"},
				{"update sparse set n = n + 1 where k = 103.1", key("103.1") + ": values differ"},
			},
			"past": {
				{"delete from past where k = 103.1", key("103.1") + ", version that begins at 103: missing in the destination"},
				{`update past set "__END_AT" = 9999 where k = 104.1`, "version that begins at 104: values differ"},
				{`update past set "__START_AT" = 99 where k = 105.1`, "version that begins at 99: only in the destination"},
				{`update past set doc = '{"a": 1}' where k = 107.1`, "version that begins at 107: values differ"},
			},
		} {
			wants := []string{target + fmt.Sprintf(": %d differences of", len(edits)+map[string]int{"past": 1}[target])}
			for _, e := range edits {
				r.atTarget(t, e[0])
				wants = append(wants, e[1])
			}
			if out := r.refused(t, 1, wants, "verify", "--table", target); strings.Contains(out, "secret") {
				t.Errorf("verify shows values:\n%s", out)
			}
		}
	})
}
