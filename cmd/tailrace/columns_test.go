package main

import (
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// A history by a sequence of several columns is ordered, and asked for, column by
// column, in every destination.
func TestASequenceOfSeveralColumns(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed (k int, longer_name date, n numeric, name text, v text);
insert into feed values (1, '2024-01-02', 9.5, 'b', 'second'), (1, '2024-01-02', 10, 'B', 'third'), (1, '2024-01-01', 100, 'z', 'first'), (1, '2024-01-02', 10, 'a', 'fourth')`, `flows:
  - {source: public.feed, source_kind: feed, target: hist, stored_as_scd_type: 2, keys: [k], sequence_by: [longer_name, n, name], apply_as_deletes: "v is null", except_column_list: [longer_name, n, name]}`)
		r.once(t)
		r.exec(t, `insert into feed values (1, '2024-03-01', 'NaN', 'say "x", \', 'last'), (1, '2024-02-01', -1, '', null)`)
		r.once(t)
		versions := func(more ...string) string {
			t.Helper()
			_, rows := r.shown(t, "hist", more...)
			var got []string
			for _, row := range rows {
				got = append(got, row[1])
			}
			return strings.Join(got, " ")
		}
		if got := versions(); got != "first second third fourth last" {
			t.Errorf("show: %s", got)
		}
		for at, want := range map[string]string{
			"(2024-01-01, 100, z)":                                "first",
			"(2024-01-02, 9.49, z)":                               "first",
			"(2024-01-02, 9.6, A)":                                "second",
			"(2024-01-02, 10, B)":                                 "third",
			`{"longer_name": "2024-01-31", "n": 1e3, "name": ""}`: "fourth",
			`(2024-02-01, -1, "")`:                                "",
			`(2024-02-01, -1.001, x)`:                             "fourth",
			`(2024-03-02, 1, "")`:                                 "last",
		} {
			if got := versions("--as-of", at); got != want {
				t.Errorf("as of %s: %q, want %q", at, got, want)
			}
		}
		r.refused(t, 2, []string{"longer_name, n, name"}, "show", "hist", "--as-of", "(2024-01-01, 5)")
		r.refused(t, 2, nil, "show", "hist", "--as-of", "(soon, 5, x)")
		if out := r.must(t, "verify"); !strings.Contains(out, ": 0 differences of 5 rows (keys, starts, ends and columns compared with the remembered events;") {
			t.Errorf("verify: %s", out)
		}
		contains(t, r.must(t, "explain", "--flow", "hist", "--key", "1"), `2024-03-01, NaN, say "x", \`)
	})
}
