package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// alike are values of each type that are easily taken for each other.
var alike = []struct {
	typ    string
	values [4]string
}{
	{"bool", [4]string{"true", "false", "NULL", "true"}},
	{"bytea", [4]string{`'\x'`, `'\x00'`, `'\x0000'`, `NULL`}},
	{"int2", [4]string{"1", "-1", "256", "0"}},
	{"int4", [4]string{"1", "-1", "65536", "0"}},
	{"int8", [4]string{"1", "4294967296", "-1", "NULL"}},
	{"text", [4]string{"''", "NULL", "'NULL'", `E'a\n"b",(c)\\'`}},
	{"varchar(20)", [4]string{"'a'", "'a '", "'A'", "'ä'"}},
	{"char(5)", [4]string{"'a'", "'A'", "''", "NULL"}},
	{"bpchar", [4]string{"'a'", "'a '", "'a  '", "''"}},
	{"float4", [4]string{"'0'", "'-0'", "'1.1'", "'1.1000001'"}},
	{"float8", [4]string{"'0'", "'-0'", "'NaN'", "'0.1'"}},
	{"numeric", [4]string{"'1.0'", "'1.00'", "'1'", "'NaN'"}},
	{"date", [4]string{"'0001-01-01'", "'0001-01-01 BC'", "'infinity'", "'-infinity'"}},
	{"time", [4]string{"'00:00'", "'24:00'", "'00:00:00.000001'", "NULL"}},
	{"timetz", [4]string{"'12:00+00'", "'13:00+01'", "'12:00:00.000001+00'", "'24:00+00'"}},
	{"timestamp", [4]string{"'2024-03-01 00:00'", "'2024-01-03 00:00'", "'2024-03-01 00:00:00.000001'", "'infinity'"}},
	{"timestamptz", [4]string{"'2024-03-01 00:00+00'", "'2024-03-01 00:00+09'", "'0044-03-15 00:00+00 BC'", "'-infinity'"}},
	{"interval", [4]string{"'1 mon'", "'30 days'", "'720:00:00'", "'-1 mon'"}},
	{"uuid", [4]string{"'00000000-0000-0000-0000-000000000000'", "'00000000-0000-0000-0000-000000000001'", "NULL", "'00000001-0000-0000-0000-000000000000'"}},
	{"json", [4]string{`'{"a":1}'`, `'{"a": 1}'`, `'null'`, "NULL"}},
	{"jsonb", [4]string{`'{"a":1.0}'`, `'{"a":1.00}'`, `'null'`, "NULL"}},
	{"inet", [4]string{"'10.0.0.1'", "'10.0.0.1/24'", "'::ffff:10.0.0.1'", "'10.0.0.2'"}},
	{"cidr", [4]string{"'10.0.0.0/24'", "'10.0.0.0/16'", "'10.0.0.0/32'", "NULL"}},
	{"macaddr", [4]string{"'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'", "NULL", "'00:00:00:00:00:00'"}},
	{"varbit", [4]string{"''", "'0'", "'00'", "NULL"}},
	{"text[]", [4]string{`'{}'`, `'{NULL}'`, `'{"NULL"}'`, `'[0:0]={a}'`}},
	{"numeric[]", [4]string{`'{1.0}'`, `'{1.00}'`, `'{{1.0}}'`, `NULL`}},
	{"timestamptz[]", [4]string{`'{2024-03-01 00:00+00}'`, `'{2024-03-01 00:00+09}'`, `'{NULL}'`, `'{}'`}},
}

// Two servers with unlike settings, which sum tables up themselves, agree on equal rows
// and find what differs in any type; where a type does not allow it rows are read.
func TestServersSumUpAlike(t *testing.T) {
	t.Parallel()
	odd := dbtest.Postgres(t, dbtest.Setting("datestyle", "German, DMY"), dbtest.Setting("timezone", "Asia/Tokyo"), dbtest.Setting("bytea_output", "escape"),
		dbtest.Setting("extra_float_digits", "-15"), dbtest.Setting("intervalstyle", "sql_standard"))
	var columns, expected []string
	var sets [4][]string
	for i, a := range alike {
		columns = append(columns, fmt.Sprintf("c%d %s", i, a.typ))
		for j, v := range a.values {
			sets[j] = append(sets[j], v)
		}
	}
	schema := "create table v(k text, id bigint, " + strings.Join(columns, ", ") + ", primary key (id, k))"
	var values [4]string
	for j := range sets {
		values[j] = strings.Join(sets[j], ", ")
		schema += fmt.Sprintf("; insert into v select 'k' || i, i, %s from generate_series(%d, 400, 4) i", values[j], j+4)
	}
	schema += "; create type mood as enum ('a', 'b'); create table e(id int primary key, m mood); insert into e values (1, 'a'), (2, 'b'); create table log(v int); insert into log values (1), (1), (2)"
	r := newRig(t, odd, "postgres", schema, "log_level: debug\nflows: [{source: public.*}, {source: public.v, target: v_history, stored_as_scd_type: 2}]")
	plain := dbtest.Postgres(t)
	r.dest.dsn = plain.Database(t)
	r.reconfigure(t, "destination: {kind: postgres, dsn: ", fmt.Sprintf("destination: {kind: postgres, dsn: %q} # ", r.dest.dsn))
	r.once(t)
	out := r.must(t, "verify")
	contains(t, out, "\n0 differences of ")
	for _, target := range []string{"v", "v_history", "log"} {
		contains(t, out, fmt.Sprintf("summed up on both servers\" target=public.%s rows=%d buckets=16384 differ=0", target, map[bool]int{true: 3, false: 397}[target == "log"]))
	}
	if strings.Contains(out, "target=public.e rows=2 buckets") {
		t.Errorf("a table with a type that is not built in was summed up:\n%s", tail(out))
	}
	id := 4
	for i, a := range alike {
		for j := range 3 {
			if a.values[j+1] == a.values[j] {
				continue
			}
			expected = append(expected, fmt.Sprintf("k=k%d id=%[1]d: values differ", id+j))
			for _, target := range []string{"v", "v_history"} {
				plain.Exec(t, r.dest.dsn, fmt.Sprintf("update %s set c%d = %s where id = %d", target, i, a.values[j+1], id+j))
			}
		}
		id += 4
	}
	plain.Exec(t, r.dest.dsn, "update v set c4 = 4711 - c4 where id in (200, 201)", "insert into log values (2)", "update e set m = 'a'")
	n := len(expected) + 2
	out = r.refused(t, 1, []string{fmt.Sprintf("public.v: %d differences of 397 rows", n), fmt.Sprintf("public.v_history: %d differences of 397 rows", n-2), "public.log: 1 differences of 3 rows", "public.e: 1 differences of 2 rows",
		"target=public.v rows=397 buckets=16384 differ="}, "verify")
	// Two rows that differ may share a bucket: the seeds are drawn anew each time.
	_, after, _ := strings.Cut(out, "target=public.v rows=397 buckets=16384 differ=")
	if differ, err := strconv.Atoi(strings.Fields(after)[0]); err != nil || differ > n || differ < n-10 {
		t.Errorf("%d buckets differ, by %d rows (%v)", differ, n, err)
	}
	found := 0
	for _, e := range expected {
		if strings.Contains(out, e) {
			found++
		}
	}
	if found < 20 { // so many are named
		t.Errorf("%d of those that differ are named:\n%s", found, tail(out))
	}
	contains(t, r.must(t, "verify", "--repair", "--table", "v", "--table", "v_history", "--table", "e"), fmt.Sprintf("public.v: repaired: %d written, 0 removed", n), "\n0 differences of ")
}
