package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// Tables whose copy takes some seconds at slowly, and one whose changes show whether
// the stream goes on meanwhile.
const (
	slowTables = `
create table beat(id int primary key);
create table big(id int primary key, k int not null, v text, t text);
alter table big alter t set storage external;
insert into big select i, i, 'v' || i, repeat('t' || i || ' ', 600) from generate_series(1, 6000) i;
`
	slowFlows = `
flows:
  - {source: public.beat}
  - {source: public.big}
  - {source: public.big, target: past, stored_as_scd_type: 2}
  - {source: public.big, target: control, stored_as_scd_type: 2}
#more
`
	slowly  = "TAILRACE_HYDRATE_MAX_RATE=5MiB"   // the 20 MB of big take 4 s
	tooSlow = "TAILRACE_HYDRATE_MAX_RATE=256KiB" // and here more than a minute, for what is killed before
)

// asked is a command that runs beside the test.
type asked struct {
	out  []byte
	err  error
	done chan struct{}
}

func (r *rig) asking(t testing.TB, command string, more ...string) *asked {
	t.Helper()
	a := &asked{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit())
	c := exec.CommandContext(ctx, binary(t), r.args(command, more...)...)
	go func() {
		defer close(a.done)
		defer cancel()
		a.out, a.err = c.CombinedOutput()
	}()
	t.Cleanup(func() {
		cancel()
		<-a.done
	})
	return a
}

// runs reports whether the command has not ended.
func (a *asked) runs() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// answer waits for the command and wants it to say something.
func (a *asked) answer(t testing.TB, wants ...string) {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Fatalf("the command: %v\n%s", a.err, tail(string(a.out)))
	}
	contains(t, string(a.out), wants...)
}

// leavesNothing asserts that no slot, stage or session of a copy is left, as many
// sessions of the pipeline being at the source as before.
func (r *rig) leavesNothing(t testing.TB, sessions string) {
	t.Helper()
	eventually(t, patience, "slots and sessions of the copy are gone", func() bool {
		return r.one(t, "select count(*) from pg_replication_slots where temporary and database = current_database()") == "0" && r.sessions(t) <= sessions
	})
}

func (r *rig) sessions(t testing.TB) string {
	return r.one(t, "select to_char(count(*), 'FM000') from pg_stat_activity where datname = current_database() and application_name like 'tailrace/%'")
}

func (r *rig) noStages(t testing.TB) {
	t.Helper()
	if left := r.held(t, "select count(*) from information_schema.tables where table_schema = '_tailrace' and table_name like 'stage%'")[0][0]; left != "0" {
		t.Errorf("%s stages are left", left)
	}
}

// mixed are changes of every kind of rows whose id ends with d.
func mixed(d int) []string {
	return []string{
		fmt.Sprintf("update big set v = v || 'u%d' where id %% 100 = %d", d, d), // t is not sent
		fmt.Sprintf("update big set t = null where id %% 100 = %d", d+10),
		fmt.Sprintf("delete from big where id %% 100 = %d", d+20),
		fmt.Sprintf("update big set id = id + 100000 where id %% 100 = %d and id < 100000", d+30), // a move, without t
		fmt.Sprintf("insert into big select 200000 + %d * 1000 + i, i, 'new', 'x' from generate_series(1, 20) i", d),
		fmt.Sprintf("update big set id = -id, v = 'swapped' where id in (%d, %d)", 40+d, 1040+d),
	}
}

// While a table is copied again the changes of others arrive at once, and its own are
// right at the end, in a current table and in a history that misses nothing.
func TestOthersDoNotWaitForAResync(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, slowTables, slowFlows)
		r.once(t)
		r.atTarget(t, "delete from big where id % 100 = 95", "update big set v = 'by hand' where id = 96")
		p := r.start(t, []string{slowly})
		r.following(t, p)
		r.through(t, "insert into beat values (0)")
		sessions := r.sessions(t)
		for i, target := range []string{"big", "past"} {
			copied := strings.Count(p.output.String(), "copying beside the stream")
			a := r.asking(t, "resync", "--table", target)
			eventually(t, patience, "it copies", func() bool {
				return strings.Count(p.output.String(), "copying beside the stream") > copied
			})
			arrived := 0
			for n := range 3 {
				r.through(t, append(mixed(3*i+n), fmt.Sprintf("insert into beat values (%d)", 1+10*i+n))...)
				if n == 0 && i == 0 {
					r.refused(t, 4, []string{"ask for the repair again"}, "verify", "--table", "big", "--repair")
					contains(t, r.must(t, "status"), "a table is read beside the stream")
				}
				if a.runs() {
					arrived++
				}
			}
			if arrived == 0 {
				t.Errorf("changes of others arrived only after the copy of %s", target)
			}
			if target == "past" {
				a.answer(t, "past copied again at ", "0 versions ended, 0 began")
				continue
			}
			second := r.asking(t, "resync", "--table", target) // waits for the first
			a.answer(t, "big copied again at ", "the stream waited ")
			second.answer(t, "0 rows removed, 0 written")
		}
		r.leavesNothing(t, sessions)
		r.through(t, mixed(7)...)

		// TRUNCATE waits for the reading of the table, and is in the log behind it.
		copied := strings.Count(p.output.String(), "copying beside the stream")
		a := r.asking(t, "resync", "--table", "big")
		eventually(t, patience, "it copies", func() bool {
			return strings.Count(p.output.String(), "copying beside the stream") > copied
		})
		r.through(t, "insert into beat values (100)")
		r.commit(t, "truncate big", "insert into big select i, i, 'after', 't' from generate_series(1, 500) i")
		a.answer(t, "big copied again at ")
		r.through(t, "update big set v = 'later' where id <= 5")
		p.stop(t)
		r.same(t)
		r.noStages(t)
		if st := r.state(t); len(st.Gaps) != 0 || len(st.Problems) != 0 {
			t.Errorf("gaps %+v, problems %v", st.Gaps, st.Problems)
		}
		versions := func(target string) []string {
			return sortedRows(r.held(t, `select id, k, v, md5(t), cast("__START_AT" as varchar), cast("__END_AT" as varchar) from "`+target+`"`))
		}
		if past, control := versions("past"), versions("control"); !slices.Equal(past, control) {
			t.Errorf("the history that was copied again differs from the other:\n%s", differing(past, control))
		}
		if strings.Contains(p.output.String(), "will try again") {
			t.Errorf("a resync counts as a fault:\n%s", tail(p.output.String()))
		}
	})
}

// Kills of the daemon at every step of a copy beside the stream: the next daemon begins
// it again, and what was asked for is done.
func TestKillsDuringACopyBesideTheStream(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, strings.ReplaceAll(slowTables, "6000", "2000"), slowFlows)
		r.once(t)
		for i, point := range []string{"", "stage filled", "stage followed", "target replaced", "resync done"} {
			r.atTarget(t, fmt.Sprintf("delete from big where k = %d", 595+100*i))
			env := []string{tooSlow}
			if point != "" {
				env = []string{"TAILRACE_KILL_AT=" + point}
			}
			p := r.start(t, env)
			r.following(t, p)
			a := r.asking(t, "resync", "--table", "big")
			if point == "" {
				p.says(t, patience, "copying beside the stream")
				r.through(t, mixed(i)...)
				p.kill()
			} else if code := p.wait(t, 60*time.Second); code != -1 {
				t.Fatalf("at %q: exit %d\n%s", point, code, tail(p.output.String()))
			}
			r.exec(t, mixed(10+i)...)
			if kind == "duckdb" { // nobody has the file: the command does it
				a.answer(t, "big copied again at ")
			}
			p = r.start(t, nil)
			a.answer(t, "big copied again at ")
			r.through(t, fmt.Sprintf("insert into beat values (%d)", i))
			p.stop(t)
			r.leavesNothing(t, "000")
			r.noStages(t)
			r.same(t)
		}
	})
}

// Tables that come later, by pattern and by name, are copied while others stream, through
// kills; nobody sees a part of them.
func TestOthersDoNotWaitForTablesThatComeLater(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table beat(id int primary key)", "flows:\n  - {source: public.*}\n#more\n")
		r.once(t)
		r.exec(t, strings.Split(strings.ReplaceAll(slowTables, "create table beat(id int primary key);\n", ""), ";\n")[:3]...)
		r.exec(t, "create table small(id int primary key, v text)", "insert into small values (1, 'a')")
		r.reconfigure(t, "#more", "  - {source: public.big, target: past, stored_as_scd_type: 2}\n")
		for i, point := range []string{"", "stage filled", "stage followed", "target replaced"} {
			env := []string{tooSlow}
			if point != "" {
				env = []string{"TAILRACE_KILL_AT=" + point}
			}
			p := r.start(t, env)
			if point != "" {
				if code := p.wait(t, 60*time.Second); code != -1 {
					t.Fatalf("at %q: exit %d\n%s", point, code, tail(p.output.String()))
				}
			} else {
				p.says(t, patience, "copying beside the stream")
				r.through(t, append(mixed(0), "insert into beat values (0)")...)
				contains(t, r.must(t, "status"), "copying", "a table is read beside the stream")
				r.through(t, mixed(1)...)
				if strings.Contains(p.output.String(), "copied beside the stream") {
					t.Errorf("the copy was too fast for this test:\n%s", tail(p.output.String()))
				}
				p.kill()
			}
			if done := r.held(t, "select count(*) from past")[0][0]; done != "0" && point != "target replaced" {
				t.Errorf("killed at %q, the target shows %s rows", point, done)
			}
			r.exec(t, mixed(10+i)...)
		}
		p := r.start(t, nil)
		eventually(t, 60*time.Second, "all are live", func() bool {
			return strings.Count(p.output.String(), "copied beside the stream") == 3
		})
		r.through(t, append(mixed(8), "insert into small values (2, 'b')")...)
		p.stop(t)
		r.leavesNothing(t, "000")
		r.noStages(t)
		r.same(t)
		if st := r.state(t); len(st.Gaps) != 0 || len(st.Problems) != 0 {
			t.Errorf("gaps %+v, problems %v", st.Gaps, st.Problems)
		}
		if strings.Contains(p.output.String(), "will try again") {
			t.Errorf("tables that come later count as a fault:\n%s", tail(p.output.String()))
		}
	})
}

// A table that cannot be copied is parked alone; asked for when that is mended, it is
// live.
func TestATableThatComesLaterAndFailsIsParkedAlone(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table beat(id int primary key)", everything)
		r.once(t)
		r.exec(t, "create table good(id int primary key)", "insert into good values (1)",
			"create table bad(id int primary key, n numeric(10, 2))", "insert into bad values (1, 'NaN')")
		if kind == "postgres" {
			r.atTarget(t, "create table bad(id int primary key, n numeric(10, 2) check (n < 100))")
		}
		p := r.start(t, nil)
		p.says(t, patience, "table is parked")
		r.through(t, "insert into beat values (1)")
		p.says(t, 90*time.Second, "copied beside the stream")
		contains(t, r.must(t, "status"), "parked", "tailrace resync --table", ".bad ")
		r.exec(t, "update bad set n = 1")
		contains(t, r.must(t, "resync", "--table", "bad"), "1 rows", "it was parked and is live")
		r.through(t, "insert into bad values (2, 2)", "insert into good values (2)")
		p.stop(t)
		r.same(t)
		r.noStages(t)
	})
}

// A pause ends a copy beside the stream, with its slot; a table that is new is copied
// after it, and who asked for a copy is told.
func TestAPauseEndsACopyBesideTheStream(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", "create table beat(id int primary key)", everything)
	r.once(t)
	r.exec(t, strings.Split(slowTables, ";\n")[1:4]...)
	p := r.start(t, []string{slowly})
	p.says(t, patience, "copying beside the stream")
	r.must(t, "pause")
	if n := r.one(t, "select count(*) from pg_replication_slots where temporary and database = current_database()"); n != "0" {
		t.Errorf("%s slots of copies during a pause", n)
	}
	r.must(t, "resume")
	p.says(t, 90*time.Second, "copied beside the stream")
	a := r.asking(t, "resync", "--table", "big")
	eventually(t, 60*time.Second, "it copies again", func() bool {
		return strings.Count(p.output.String(), "copying beside the stream") == 3
	})
	r.must(t, "pause")
	<-a.done
	if a.err == nil || !strings.Contains(string(a.out), "was paused meanwhile") {
		t.Errorf("who asked was told: %v\n%s", a.err, a.out)
	}
	r.must(t, "resume")
	r.through(t, "update big set v = 'after'")
	p.stop(t)
	r.same(t)
	r.noStages(t)
	if strings.Contains(p.output.String(), "parked") {
		t.Errorf("a pause parks tables:\n%s", tail(p.output.String()))
	}
}
