package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// everywhere runs a test into each kind of destination, MariaDB too.
func everywhere(t *testing.T, fn func(t *testing.T, kind string)) {
	t.Parallel()
	all := kinds
	if !slices.Contains(all, "mysql") {
		all = append(slices.Clip(all), "mysql")
	}
	for _, kind := range all {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			fn(t, kind)
		})
	}
}

// lines shows a target with blanks between cells; ∅ is NULL.
func (r *rig) lines(t testing.TB, target string, more ...string) (out []string) {
	t.Helper()
	_, rows := r.shown(t, target, more...)
	for _, row := range rows {
		out = append(out, strings.ReplaceAll(strings.Join(row, " "), null, "∅"))
	}
	return out
}

func (r *rig) shows(t testing.TB, target string, more []string, want ...string) {
	t.Helper()
	if got := r.lines(t, target, more...); !slices.Equal(got, want) {
		t.Errorf("show %s %s:\n%s\nwant\n%s", target, strings.Join(more, " "), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const prices = `create table feed (id int, region text, v text, at date, known bigint, op text);
insert into feed values (1, 'e', 'a', '2024-01-01', 10, 'U'), (1, 'e', 'b', '2024-03-01', 20, 'U'), (2, 'e', 'x', '2024-01-01', 10, 'U'), (1, 'w', 'q', '2024-01-01', 15, 'U')`

const pricesFlow = `flows:
  - {source: public.feed, source_kind: feed, target: prices, stored_as_scd_type: bitemporal, keys: [id, region], sequence_by: at, system_sequence_by: known, apply_as_deletes: "op = 'D'", except_column_list: [op, at, known]}`

// A feed table: what is copied and what follows, late on both axes, a bad event that is
// retried, a new column, and what people ask of the target.
func TestABitemporalTargetOfAFeedTable(t *testing.T) {
	server := dbtest.Postgres(t)
	everywhere(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, prices, pricesFlow)
		contains(t, r.must(t, "plan"), "(bitemporal)", "__SYSTEM_END_AT")
		r.once(t)
		r.shows(t, "prices", nil,
			"1 e a 2024-01-01 ∅ 10 20",
			"1 e a 2024-01-01 2024-03-01 20 ∅",
			"1 e b 2024-03-01 ∅ 20 ∅",
			"1 w q 2024-01-01 ∅ 15 ∅",
			"2 e x 2024-01-01 ∅ 10 ∅")
		r.exec(t, "insert into feed values (1, 'e', 'c', '2024-02-01', 15, 'U')", // late on both axes
			"insert into feed values (2, 'e', null, '2024-06-01', 30, 'D')",
			"insert into feed values (3, 'e', 'y', '2024-06-01', null, 'U')",
			"alter table feed add column note text",
			"insert into feed values (2, 'e', 'z', '2024-07-01', 40, 'U', 'new')")
		r.once(t)
		want := []string{
			"1 e a 2024-01-01 ∅ 10 15 ∅",
			"1 e a 2024-01-01 2024-02-01 15 ∅ ∅",
			"1 e c 2024-02-01 ∅ 15 20 ∅",
			"1 e c 2024-02-01 2024-03-01 20 ∅ ∅",
			"1 e b 2024-03-01 ∅ 20 ∅ ∅",
			"1 w q 2024-01-01 ∅ 15 ∅ ∅",
			"2 e x 2024-01-01 ∅ 10 30 ∅",
			"2 e x 2024-01-01 2024-06-01 30 ∅ ∅",
			"2 e z 2024-07-01 ∅ 40 ∅ new",
		}
		r.shows(t, "prices", nil, want...)
		if bad := r.must(t, "quarantine", "list"); !strings.Contains(bad, "system_sequence_by: the sequence is NULL") {
			t.Errorf("in quarantine: %s", bad)
		}
		contains(t, r.must(t, "verify"), "prices: 0 differences of 9 rows (keys, starts, ends and columns compared", "overlap on both axes")

		r.shows(t, "prices", []string{"--as-of", "2024-02-15", "--known-at", "16"}, want[2], want[5], want[6])
		r.shows(t, "prices", []string{"--as-of", "2024-02-15", "--known-at", "20"}, want[3], want[5], want[6])
		r.shows(t, "prices", []string{"--known-at", "14"}, want[0], want[6])
		r.shows(t, "prices", []string{"--as-of", "2024-06-30"}, want[0], want[2], want[4], want[5], want[6])
		r.refused(t, 2, []string{"prices", `"soon"`}, "show", "prices", "--known-at", "soon")

		contains(t, r.must(t, "explain", "--flow", "prices", "--key", "1,e"), "(bitemporal)", "rule: 3 of its 5 rows are still believed", "2024-02-01  15",
			"believed no longer: [2024-01-01, open); instead: [2024-01-01, 2024-02-01), [2024-02-01, open)")

		// By hand, and found.
		r.atTarget(t, `update prices set "__SYSTEM_END_AT" = 20 where v = 'b'`, `delete from prices where v = 'q'`,
			`insert into prices (id, region, v, "__START_AT", "__SYSTEM_START_AT") values (2, 'e', 'o', '2024-02-01', 35)`)
		r.refused(t, 1, []string{"prices: 3 differences", "1 rows end before or at their start", "id=1 region=e __START_AT=2024-03-01 __SYSTEM_START_AT=20: values differ",
			"id=1 region=w __START_AT=2024-01-01 __SYSTEM_START_AT=15: missing in the destination", "only in the destination"}, "verify")
	})
}

// Of a table whose rows change, the log says when something became known.
func TestABitemporalTargetOfATable(t *testing.T) {
	server := dbtest.Postgres(t)
	everywhere(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table items (id int primary key, v text, at timestamptz not null); insert into items values (1, 'a', '2001-01-01Z'), (2, 'b', '2001-01-01Z'), (3, 'c', '2001-01-01Z')", `flows:
  - {source: public.items, target: past, stored_as_scd_type: bitemporal, sequence_by: at, system_sequence_by: _lsn, except_column_list: [at]}`)
		// shape is what is believed now of each key: values with the years of their bounds.
		shape := func() (believed string, rows int) {
			t.Helper()
			var out []string
			_, all := r.shown(t, "past")
			for _, row := range all {
				year := func(at string) string {
					switch {
					case at == null:
						return ""
					case at > "2020":
						return "now" // of a commit
					}
					return at[:4]
				}
				if row[5] == null {
					out = append(out, row[0]+row[1]+"["+year(row[2])+","+year(row[3])+")")
				}
			}
			return strings.Join(out, " "), len(all)
		}
		expect := func(rows int, want string) {
			t.Helper()
			if got, n := shape(); got != want || n != rows {
				t.Errorf("%d rows, believed: %s\nwant %d rows,     %s", n, got, rows, want)
			}
			r.same(t)
		}
		r.once(t)
		expect(3, "1a[2001,) 2b[2001,) 3c[2001,)")
		r.commit(t, "update items set v = 'aa', at = '2003-01-01Z' where id = 1", "delete from items where id = 2")
		r.once(t)
		expect(6, "1a[2001,2003) 1aa[2003,) 2b[2001,now) 3c[2001,)")
		// It was so a year before already; and a key changes.
		r.commit(t, "update items set v = 'ab', at = '2002-01-01Z' where id = 1", "update items set id = 4, at = '2005-01-01Z' where id = 3")
		r.once(t)
		expect(10, "1a[2001,2002) 1ab[2002,2003) 1aa[2003,) 2b[2001,now) 3c[2001,2005) 4c[2005,)")
		r.commit(t, "truncate items", "insert into items values (5, 'e', '2006-01-01Z')")
		r.once(t)
		expect(13, "1a[2001,2002) 1ab[2002,2003) 1aa[2003,now) 2b[2001,now) 3c[2001,2005) 4c[2005,now) 5e[2006,)")
	})
}

// What a bitemporal flow cannot mean is refused before anything is made, and so is a
// definition by which its target makes no sense.
func TestBitemporalFlowsThatMakeNoSenseAreRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, prices, pricesFlow)
		refused := func(code int, old, new string, wants ...string) {
			t.Helper()
			right, err := os.ReadFile(r.config)
			if err != nil {
				t.Fatal(err)
			}
			r.reconfigure(t, old, new)
			r.refused(t, code, wants, "run", "--once")
			if err := os.WriteFile(r.config, right, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			old, new string
			wants    []string
		}{
			{", system_sequence_by: known", "", []string{"needs system_sequence_by"}},
			{"scd_type: bitemporal", "scd_type: 2", []string{"system_sequence_by goes with stored_as_scd_type: bitemporal"}},
			{"apply_as_deletes", "apply_as_truncates: \"op = 'T'\", apply_as_deletes", []string{"apply_as_truncates", "not truncated"}},
			{"apply_as_deletes", "columns_to_update: op, apply_as_deletes", []string{"columns_to_update"}},
			{"apply_as_deletes", "track_history_column_list: [v], apply_as_deletes", []string{"track_history"}},
			{"system_sequence_by: known", "system_sequence_by: nothing", []string{"system_sequence_by names no column: nothing"}},
			{"sequence_by: at,", "sequence_by: [at, id],", []string{"one column"}},
			{"flows:", "flows:\n  - {source: public.feed, source_kind: feed, name: other, target: prices, stored_as_scd_type: bitemporal, keys: [id, region], sequence_by: at, system_sequence_by: known, except_column_list: [op, at, known]}", []string{"bitemporal and is written by several flows"}},
		} {
			refused(2, c.old, c.new, c.wants...)
		}
		r.exec(t, "create table items (id int primary key, at date, known date)")
		const items = "flows:\n  - {source: public.items, target: items, stored_as_scd_type: bitemporal, sequence_by: at, system_sequence_by: "
		refused(2, "flows:", items+"known}", "_commit_time or _lsn", "DELETE", "source_kind: feed")
		refused(2, "flows:", items+"_lsn}", "delete_sequence", "type date")

		r.once(t)
		before := r.lines(t, "prices")
		for _, c := range [][2]string{
			{"scd_type: bitemporal, keys: [id, region], sequence_by: at, system_sequence_by: known", "scd_type: 2, keys: [id, region], sequence_by: at"},
			{"scd_type: bitemporal, keys: [id, region], sequence_by: at, system_sequence_by: known", "scd_type: 1, keys: [id, region], sequence_by: at"},
			{"system_sequence_by: known", "system_sequence_by: id"},
			{"keys: [id, region]", "keys: [id]"},
		} {
			refused(3, c[0], c[1], "prices", "--overwrite")
		}
		r.once(t)
		r.shows(t, "prices", nil, before...)
		r.once(t, "--overwrite")
		r.shows(t, "prices", nil, before...)
	})
}
