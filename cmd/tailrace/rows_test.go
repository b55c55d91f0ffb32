package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// scene is a table or a few of them in a schema of their own, rows that are there
// before the copy, and transactions that come afterwards.
type scene struct {
	name    string
	setup   string
	changes []string
	flows   string // beside the patterns, where they leave the schema out
	check   func(t *testing.T, r *rig)
}

const bigCells = `repeat('x', 9000), jsonb_build_object('k', repeat('j', 9000)), json_build_object('k', repeat('o', 9000)), decode(repeat('ab', 9000), 'hex'),
  array[repeat('a', 9000), null, 'q"\,{}'], array(select generate_series(1, 3000)), xmlparse(content '<a>' || repeat('x', 9000) || '</a>'), repeat('d', 9000)`

var scenes = []scene{
	{name: "toast", setup: `
create domain long as text;
create table d(id int primary key, n int, big text, jb jsonb, j json, b bytea, ta text[], ia int[], x xml, dom long);
create table f(like d including all); alter table f replica identity full;
do $$ declare r record; begin for r in select attrelid::regclass t, attname from pg_attribute where attrelid in ('d'::regclass, 'f'::regclass) and attnum > 2 loop
  execute format('alter table %s alter %I set storage external', r.t, r.attname); end loop; end $$;
insert into d select i, i, ` + bigCells + ` from generate_series(1, 6) i; insert into f select * from d;`,
		changes: []string{
			"update d set n = n + 10; update f set n = n + 10",
			"update d set n = n where id = 1; update f set n = n where id = 1",
			"insert into d select 20, 1, " + bigCells + "; update d set n = 2 where id = 20; insert into f select * from d where id = 20; update f set n = 3 where id = 20",
			"update d set id = id + 100 where id in (2, 20); update f set id = id + 100 where id in (2, 20)",
			"update d set n = 99, id = 102 + 1000 where id = 102; update f set n = 99, id = 1102 where id = 102",
			"update d set big = 'short', ta = '{}' where id = 3; update f set big = 'short', ta = '{}' where id = 3",
			"update d set n = 5 where id = 3; update f set n = 5 where id = 3",
			"delete from d where id = 4; delete from f where id = 4",
			"insert into d select 4, 4, " + bigCells + "; insert into f select 4, 4, " + bigCells,
			"update d set n = 7 where id = 5; delete from d where id = 5; update f set n = 7 where id = 5; delete from f where id = 5",
			"delete from d where id = 6; insert into d select 6, 66, " + bigCells + "; update d set n = 67 where id = 6; update d set id = 600 where id = 6",
		},
		check: func(t *testing.T, r *rig) {
			for _, target := range []string{"h.toast_d", "h.toast_f"} {
				header, rows := r.shown(t, target)
				for _, row := range rows {
					for i := 2; i < 10; i++ {
						if row[i] == null || len(row[i]) < 9000 && row[i] != "short" && row[i] != "{}" {
							t.Errorf("%s: a version of key %s has lost %s: %.30q", target, row[0], header[i], row[i])
						}
					}
				}
			}
		}},

	{name: "lookalikes", setup: `create table s(id int primary key, v text not null, b bytea not null default '', c char(3) not null default '');
insert into s(id, v) values (1, '__debezium_unavailable_value'), (2, 'unchanged_toast'), (3, '\N'), (4, 'NULL'), (5, ''), (6, '\x'), (7, e'a\tb\nc\rd\\e'), (8, '"'), (9, ','), (10, '\.'), (11, e'\u00a0\u2028\U0001f600'), (12, '{}')`,
		changes: []string{
			"insert into s(id, v) select id + 100, v from s",
			"update s set v = v || '' where id < 50", "update s set id = id + 1000 where id > 100",
			"update s set v = '\\N' where id = 1; update s set v = '' where id = 4; delete from s where id = 5",
		}},

	{name: "keys_that_move", setup: `create table k(id int primary key, u int unique, v text); insert into k select i, i, 'v' || i from generate_series(1, 9) i`,
		changes: []string{
			"update k set id = 1001 where id = 1",
			"insert into k values(10, 10, 's')", "update k set id = 1010 where id = 10",
			"insert into k values(20, 20, 't'); update k set id = 1020 where id = 20",
			"update k set id = -1 where id = 2; update k set id = 2 where id = 3; update k set id = 3 where id = -1",
			"update k set u = -1 where id = 4; update k set u = 4 where id = 5; update k set u = 5 where id = 4",
			"update k set id = 10 where id = 9; update k set id = 9 where id = 8; update k set id = 8 where id = 7; update k set id = 7 where id = 6",
			"update k set id = 500 where id = 4; insert into k values(4, 400, 'new')", "delete from k where id = 500; update k set id = 500 where id = 4; insert into k values(4, 401, 'newer')",
			"update k set id = 1, v = 'back' where id = 1001", "update k set id = 2001 where id = 1; update k set id = 1 where id = 2001",
		},
		check: func(t *testing.T, r *rig) {
			// A move closes the old key at the instant at which the new one begins.
			_, rows := r.shown(t, "h.keys_that_move_k")
			begins, ends := map[string]string{}, map[string]string{}
			for _, row := range rows {
				if row[0] == "1010" {
					begins["1010"] = row[3]
				}
				if row[0] == "10" && row[2] == "s" {
					ends["10"] = row[4]
				}
				if row[0] == "20" || row[0] == "-1" || row[0] == "2001" {
					t.Errorf("a key that nobody outside its transaction saw has a version: %v", row)
				}
			}
			if begins["1010"] == "" || begins["1010"] != ends["10"] {
				t.Errorf("key 10 ends at %q, key 1010 begins at %q", ends["10"], begins["1010"])
			}
		}},

	{name: "key_types", setup: `create type mood as enum('sad', 'o"k', 'very happy');
create table e(m mood, id int, v int, primary key(m, id)); insert into e select (enum_range(null::mood))[1 + i % 3], i, 0 from generate_series(1, 300) i;
create table u(id uuid primary key, v int); insert into u select md5(i::text)::uuid, 0 from generate_series(1, 50) i;
create table c(id char(5) primary key, v int); insert into c values('a', 0), ('a b', 0), ('', 0), ('abcde', 0);
create table tz(id timestamptz primary key, v int); insert into tz values('infinity', 0), ('-infinity', 0), ('2024-03-31 02:30:00.123456+02', 0), ('0044-03-15 BC', 0);
create table b(id bytea primary key, v int); insert into b values('', 0), ('\x00', 0), ('\x0000', 0), ('\xdeadbeef', 0);
create table n(id numeric primary key, v int); insert into n values(1.0, 0), (2.50, 0), ('NaN', 0), (12345678901234567890123456789012345678901234.5, 0), (0, 0);
create table tx(id text primary key, v int); insert into tx values('A', 0), ('a', 0), ('ä', 0), ('a ', 0), ('', 0), (e'\n', 0), ('NULL', 0);
create table r(a date, b int8, c bool, v int, primary key(c, b, a)); insert into r values('2024-01-01', 9223372036854775807, true, 0), ('infinity', -9223372036854775808, false, 0)`,
		changes: []string{
			"update e set v = id; update e set m = 'sad' where id % 3 = 1; delete from e where id % 7 = 0; update e set id = id + 1000 where id % 11 = 0",
			"update u set v = 1; delete from u where id::text > 'c'; insert into u values('00000000-0000-0000-0000-000000000000', 5)",
			"update c set v = 1; delete from c where id = 'a'; update c set id = 'z' where id = ''; insert into c values('a', 9)",
			"update tz set v = 1; delete from tz where id = 'infinity'; update tz set id = '4713-01-01 BC' where id = '-infinity'",
			"update b set v = 1; delete from b where id = '\\x00'; update b set id = '\\x01' where id = ''",
			"update n set v = 1; update n set id = 1.00 where id = 1; delete from n where id = 'NaN'; update n set id = -0.0 where id = 0; delete from n where id = 2.5",
			"update tx set v = 1; delete from tx where id = 'a'; update tx set id = 'a' where id = 'a '; delete from tx where id = ''",
			"update r set v = 1; update r set a = '-infinity' where c; delete from r where not c",
		}},

	{name: "deleted_and_back", setup: `create table t(id int primary key, a text not null, b int not null, c timestamptz not null default '2020-01-01'); insert into t values (1, 'one', 1), (2, 'two', 2), (3, 'three', 3)`,
		changes: []string{
			"delete from t where id = 1", "insert into t values(1, 'one', 1)", "delete from t where id = 1", "insert into t values(1, 'uno', 1)",
			"delete from t where id = 2; insert into t values(2, 'two', 2)", // equal values in one transaction: nothing happened
			"delete from t where id = 3; insert into t values(3, 'drei', 3)",
			"insert into t values(4, 'x', 4); delete from t where id = 4",
			"update t set b = b", "update t set a = 'dos' where id = 2; update t set a = 'two' where id = 2",
		},
		check: func(t *testing.T, r *rig) {
			var got []string
			_, rows := r.shown(t, "h.deleted_and_back_t")
			for _, row := range rows {
				open := map[bool]string{true: "open", false: "closed"}[row[5] == null]
				got = append(got, fmt.Sprintf("%s %s %s", row[0], row[1], open))
			}
			want := []string{"1 one closed", "1 one closed", "1 uno open", "2 two open", "3 three closed", "3 drei open"}
			if !slices.Equal(got, want) {
				t.Errorf("the history is %q, want %q", got, want)
			}
		}},

	{name: "truncated", setup: `create table t(id serial primary key, v int); create table u(id int primary key references t, v int); create table l(v int);
insert into t(v) select generate_series(1, 10); insert into u select id, v from t; insert into l select v from t`,
		changes: []string{
			"insert into t(v) values(11); insert into l values(11); truncate t, l restart identity cascade; insert into t(v) values(100); insert into l values(100)",
			"insert into t(v) values(101), (102)", "truncate u", "insert into u values(1, 1)", "truncate only l", "insert into l values(7), (7)",
			"insert into t values(50, 50); truncate t cascade; insert into t values(50, 50)", "begin; savepoint s; truncate t cascade; rollback to s; insert into t values(60, 1)",
		},
		check: func(t *testing.T, r *rig) {
			if all, open := r.versions(t, "h.truncated_t"); open != 2 || all != 15 {
				t.Errorf("%d versions, %d open", all, open)
			}
		}},

	{name: "partitioned", setup: `create table p(region text, id int, v text, primary key(region, id)) partition by list(region);
create table p_eu partition of p for values in ('eu'); create table p_us(id int not null, v text, region text not null, primary key(region, id)); alter table p attach partition p_us for values in ('us');
create table p_rest partition of p default partition by range(id); create table p_rest1 partition of p_rest for values from (0) to (1000);
insert into p values('eu', 1, 'a'), ('us', 1, 'b'), ('asia', 1, 'c')`,
		changes: []string{
			"insert into p values('eu', 2, 'd'), ('us', 2, 'e'), ('asia', 2, 'f'); update p set v = v || '!'",
			"update p set region = 'us' where region = 'eu' and id = 2 and false; update p set region = 'us', id = 9 where region = 'eu' and id = 1", "delete from p where region = 'asia' and id = 1",
			"create table p_rest2 partition of p_rest for values from (1000) to (2000); insert into p values('mars', 1500, 'm')",
			"update p_us set v = 'direct' where id = 1", "insert into p_eu values('eu', 77, 'leaf')",
		}},

	{name: "names_of_constraints", setup: `create schema if not exists elsewhere; create table elsewhere.t(other int constraint t_key primary key);
create table parent(pid int primary key); create table t(x int references parent, id int constraint t_key primary key, y int unique, check (y > 0)); insert into parent values(1), (2); insert into t values(1, 10, 1), (2, 20, 2)`,
		changes: []string{"update t set x = 2, y = y + 10; delete from t where id = 20; insert into t values(1, 30, 3)"},
		check: func(t *testing.T, r *rig) {
			if _, rows := r.shown(t, "h.names_of_constraints_t"); len(rows) != 4 {
				t.Errorf("the key is not id: %v", rows)
			}
		}},

	{name: "identity_by_index", setup: `create table t(a int, b int not null, c text); create unique index on t(b); alter table t replica identity using index t_b_idx;
create table u(id int primary key, b int not null unique, c text); alter table u replica identity using index u_b_key;
insert into t values(1, 1, 'x'), (1, 2, 'y'), (null, 3, 'z'); insert into u values(1, 11, 'x'), (2, 12, 'y')`,
		changes: []string{"update t set b = 10 where b = 1; update u set b = 20 where id = 1", "update t set c = 'cc'; update u set id = 5 where id = 2; update u set c = 'cc'", "delete from t where b = 2; delete from u where b = 20; insert into t values(7, 7, '7')"}},

	{name: "chosen", setup: `create table q(id int primary key, city text, seen int, secret text); insert into q values(1, 'Bonn', 0, 's1'), (2, 'Kiel', 0, 's2')`,
		changes: []string{"update q set seen = 1", "update q set seen = 2, city = 'Köln' where id = 1", "update q set secret = 'zzz'", "update q set seen = 3; delete from q where id = 2"},
		flows: `
  - {source: chosen.q, target: chosen_some, column_list: [id, city]}
  - {source: chosen.q, target: chosen_others, except_column_list: [secret]}
  - {source: chosen.q, target: chosen_tracked, stored_as_scd_type: 2, except_column_list: [secret], track_history_column_list: [city], history_start: "-infinity"}
  - {source: chosen.q, target: chosen_untracked, stored_as_scd_type: 2, except_column_list: [secret], track_history_except_column_list: [seen]}`,
		check: func(t *testing.T, r *rig) {
			r.equalRows(t, "chosen_some", "select id, city from chosen.q")
			r.equalRows(t, "chosen_others", "select id, city, seen from chosen.q")
			for _, target := range []string{"chosen_tracked", "chosen_untracked"} {
				var got []string
				_, rows := r.shown(t, target)
				for _, row := range rows {
					got = append(got, strings.Join(row[:3], " ")+map[bool]string{true: " open", false: " closed"}[row[4] == null])
				}
				if want := []string{"1 Bonn 1 closed", "1 Köln 3 open", "2 Kiel 1 closed"}; !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", target, got, want)
				}
				if begins := rows[0][3]; (begins == "-infinity") != (target == "chosen_tracked") {
					t.Errorf("%s begins at %s", target, begins)
				}
			}
		}},

	{name: "made_by_the_server", setup: `create table g(id int generated always as identity primary key, a int, g int generated always as (a * 2) stored, d timestamptz default now()); insert into g(a) values(1), (2); alter table g add column late int not null default 7; alter table g drop column d`,
		changes: []string{"insert into g(a) values(3)", "update g set a = a + 1", "update g set id = default where id = 1; delete from g where id = 2"},
		check: func(t *testing.T, r *rig) {
			r.equalRows(t, "made_by_the_server.g", "select id, a, late from made_by_the_server.g")
		}},

	{name: "savepoints", setup: `create table t(id int primary key, v int); insert into t select i, 0 from generate_series(1, 20) i`,
		changes: []string{
			"do $$ begin for i in 1..200 loop begin insert into savepoints.t values(1000 + i, i); if i % 3 = 0 then raise exception 'x'; end if; exception when others then null; end; end loop; end $$",
			"update t set v = 1; savepoint a; update t set v = 2; rollback to a; update t set v = v + 10 where id < 5",
		}},

	{name: "without_key", setup: `create table l(a int, b text); insert into l values(1, 'x'), (1, 'x'), (null, null)`, changes: []string{"insert into l values(1, 'x'), (null, null)", "insert into l select i, 'many' from generate_series(1, 500) i"},
		flows: `
  - {source: without_key.l}`,
		check: func(t *testing.T, r *rig) { r.equalRows(t, "without_key.l", "select * from without_key.l") }},
}

// The rows of every scene are right in the destination, change by change and in one
// batch, and both ways tell the same history.
func TestRowsOfEveryScene(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		histories := map[string][2]string{}
		for way, name := range []string{"one by one", "in one batch"} {
			rest := "flows:\n"
			except := "[elsewhere.*"
			for _, s := range scenes {
				if s.flows != "" {
					except += ", " + s.name + ".*"
					rest += strings.TrimPrefix(s.flows, "\n") + "\n"
				}
			}
			except += "]"
			rest += "  - {source: '*.*', except: " + except + "}\n  - {source: '*.*', target: 'h.{schema}_{table}', stored_as_scd_type: 2, except: " + strings.TrimSuffix(except, "]") + ", truncated.l]}"
			r := newRig(t, server, kind, "", rest)
			within := func(s scene, sql string) string {
				return "set local search_path = " + s.name + ", public; " + sql
			}
			for _, s := range scenes {
				r.exec(t, "create schema "+s.name, within(s, s.setup))
			}
			var p *proc
			if way == 0 {
				p = r.start(t, nil)
				r.following(t, p)
			} else {
				r.once(t)
			}
			var last string
			for _, s := range scenes {
				for _, c := range s.changes {
					last = r.commit(t, within(s, strings.TrimPrefix(c, "begin; ")))
				}
			}
			if way == 0 {
				r.awaitConfirmed(t, last, patience)
				p.stop(t)
			} else {
				r.once(t)
			}
			r.same(t)
			for _, s := range scenes {
				t.Run(s.name+", "+name, func(t *testing.T) {
					if s.check != nil {
						s.check(t, r)
					}
					if s.flows != "" {
						return
					}
					for _, row := range server.Query(t, r.source, "select relname from pg_class where relkind in ('r', 'p') and not relispartition and relnamespace = '"+s.name+"'::regnamespace and relname <> 'l' order by 1") {
						var versions [][]string
						if kind == "postgres" { // as show reads it, without a process for each
							versions = query(t, server, r.dest.dsn, `select * from h."`+s.name+"_"+row+`"`)
						} else {
							_, versions = r.shown(t, "h."+s.name+"_"+row)
						}
						var told []string
						for _, v := range versions {
							n := len(v) - 2
							told = append(told, fmt.Sprintf("%.200q open %v", v[:n], v[n+1] == null))
						}
						slices.Sort(told)
						both := histories[s.name+"."+row]
						both[way] = strings.Join(told, "\n")
						histories[s.name+"."+row] = both
					}
				})
			}
		}
		for name, both := range histories {
			if both[0] != both[1] || both[0] == "" {
				t.Errorf("the history of %s depends on the batches:\n%.3000s\n\n%.3000s", name, both[0], both[1])
			}
		}
	})
}
