package expr

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

// pair is one expression in both dialects. lazy says that a part of it may stay
// unevaluated: PostgreSQL promises no order there, so its errors prove nothing.
type pair struct {
	ours, pg string
	lazy     bool
}

func same2(text string) pair { return pair{ours: text, pg: text} }

// generator makes random expressions of the language that both share.
type generator struct{ *rand.Rand }

func (g generator) pick(all ...string) string { return all[g.IntN(len(all))] }

// form fills %s in both dialects with the parts' texts.
func form(ours, pg string, parts ...pair) pair {
	a, b := make([]any, len(parts)), make([]any, len(parts))
	p := pair{}
	for i, part := range parts {
		a[i], b[i] = part.ours, part.pg
		p.lazy = p.lazy || part.lazy
	}
	p.ours, p.pg = fmt.Sprintf(ours, a...), fmt.Sprintf(pg, b...)
	return p
}

func both(text string, parts ...pair) pair { return form(text, text, parts...) }

func (p pair) lazily() pair {
	p.lazy = true
	return p
}

func (g generator) integer(depth int) pair {
	if depth == 0 {
		return same2(g.pick("a", "b", "k", "m", "0", "1", "7", "-3", "2147483647", "9223372036854775807", "100000"))
	}
	x, y := func() pair { return g.integer(depth - 1) }, func() pair { return g.integer(depth - 1) }
	switch g.IntN(14) {
	case 0, 1:
		return both("(%s + %s)", x(), y())
	case 2:
		return both("(%s - %s)", x(), y())
	case 3:
		return both("(%s * %s)", x(), y())
	case 4:
		return both("(%s %% %s)", x(), y())
	case 5:
		return form("(%s DIV %s)", "(%s::bigint / %s)", x(), y())
	case 6:
		return both("(- %s)", x())
	case 7:
		return both("abs(%s)", x())
	case 8:
		return both("length(%s)", g.text(depth-1))
	case 9:
		return both("position(%s IN %s)", g.text(depth-1), g.text(depth-1))
	case 10:
		return both("CAST(%s AS bigint)", g.text(depth-1))
	case 11:
		return form("CAST(%s AS bigint)", "trunc(%s)::bigint", g.numeric(depth-1))
	case 12:
		return form("extract(%[1]s FROM %[2]s)", "extract(%[1]s FROM %[2]s)::int", same2(g.pick("YEAR", "MONTH", "DAY", "WEEK", "QUARTER", "DOY", "HOUR", "MINUTE")), g.stamp(depth-1))
	}
	return g.choice(depth, g.integer)
}

func (g generator) numeric(depth int) pair {
	if depth == 0 {
		return same2(g.pick("p", "q", "0.0", "1.50", "-0.003", "12345678901234567890.5", "1000000.000001", "q", "p"))
	}
	x, y := func() pair { return g.numeric(depth - 1) }, func() pair { return g.numeric(depth - 1) }
	switch g.IntN(15) {
	case 0, 1:
		return both("(%s + %s)", x(), y())
	case 2:
		return both("(%s - %s)", x(), g.integer(depth-1))
	case 3:
		return both("(%s * %s)", x(), y())
	case 4, 5:
		return both("(%s / %s)", x(), y())
	case 6:
		return form("(%s / %s)", "(%s::numeric / %s)", g.integer(depth-1), g.integer(depth-1))
	case 7:
		return both("(%s %% %s)", x(), y())
	case 8:
		return both("(- %s)", x())
	case 9:
		return both("round(%s, "+g.pick("-3", "-1", "0", "1", "2", "20")+")", x())
	case 10:
		return both(g.pick("abs", "ceil", "floor", "sign")+"(%s)", x())
	case 11:
		return both("CAST(%s AS numeric)", g.text(depth-1))
	case 12:
		return both("CAST(%s AS numeric(8,3))", x())
	case 13:
		return both("CAST(%s AS numeric)", g.integer(depth-1))
	}
	return g.choice(depth, g.numeric)
}

func literal(s string) pair {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	return pair{ours: "CAST(" + quoted + " AS text)", pg: "(" + quoted + `::text COLLATE "C")`}
}

func (g generator) text(depth int) pair {
	if depth == 0 {
		if g.IntN(2) == 0 {
			c := g.pick("s", "t")
			return pair{ours: c, pg: "(" + c + ` COLLATE "C")`}
		}
		return literal(g.pick("", "DELETE", "delete", "a", "it's", "日本", "12", " 7 ", "1.5", "ab,cd,,e", "%_", "E"))
	}
	x, y := func() pair { return g.text(depth - 1) }, func() pair { return g.text(depth - 1) }
	count := same2(g.pick("0", "1", "2", "3", "5", "20"))
	switch g.IntN(16) {
	case 0, 1:
		return both("(%s || %s)", x(), y())
	case 2:
		return both(g.pick("upper", "lower", "reverse", "ltrim", "rtrim", "btrim", "md5")+"(%s)", x())
	case 3:
		return both("substring(%s, %s, %s)", x(), same2(g.pick("1", "2", "3", "9")), count)
	case 4:
		return both(g.pick("left", "right")+"(%s, %s)", x(), count)
	case 5:
		return both("replace(%s, %s, %s)", x(), y(), g.text(0))
	case 6:
		return both("split_part(%s, %s, %s)", x(), g.text(0), same2(g.pick("1", "2", "3", "-1", "-2")))
	case 7:
		return both(g.pick("lpad", "rpad")+"(%s, %s, %s)", x(), count, y())
	case 8:
		return both("CAST(%s AS text)", g.pickOf(depth-1, g.integer, g.numeric, g.boolean, g.date, g.stamp))
	case 9:
		return both("trim(BOTH %s FROM %s)", g.text(0), x())
	case 10:
		return both("concat_ws(%s, %s, %s)", g.text(0), x(), y())
	case 11:
		return form("j:"+g.pick("a", "b", "n", "a.b", "a.b[1]", "a['k k']", "l[0]", "l[2]"), "", pair{}).json()
	case 12:
		return both("btrim(%s, %s)", x(), g.text(0))
	case 13:
		return both(g.pick("greatest", "least")+"(%s, %s)", x(), y())
	}
	return g.choice(depth, g.text)
}

// json spells a path of ours in PostgreSQL's way.
func (p pair) json() pair {
	p.ours, _, _ = strings.Cut(p.ours, "%!")
	path := strings.NewReplacer("j:", "", "['", ",", "']", "", "[", ",", "]", "", ".", ",").Replace(p.ours)
	p.pg = `((j #>> '{` + path + `}') COLLATE "C")`
	return p
}

func (g generator) pickOf(depth int, of ...func(int) pair) pair { return of[g.IntN(len(of))](depth) }

func (g generator) date(depth int) pair {
	if depth == 0 {
		return same2(g.pick("d", "e", "DATE '2024-02-29'", "DATE '1999-12-31'"))
	}
	x := func() pair { return g.date(depth - 1) }
	switch g.IntN(5) {
	case 0:
		return both("(%s + %s)", x(), same2(g.pick("1", "-40", "k", "m")))
	case 1:
		return form("(%s + INTERVAL '%s')", "(%s + INTERVAL '%s')::date", x(), same2(g.pick("1 month", "-13 months", "1 year -3 days", "2 weeks")))
	case 2:
		return both("CAST(%s AS date)", g.stamp(depth-1))
	case 3:
		return form("date_sub(%s, %s)", "(%s - %s)", x(), same2("3"))
	}
	return g.choice(depth, g.date)
}

func (g generator) stamp(depth int) pair {
	if depth == 0 {
		return form("%s", "%s", pair{ours: "at", pg: "at"})
	}
	x := func() pair { return g.stamp(depth - 1) }
	switch g.IntN(6) {
	case 0, 1:
		return both("(%s "+g.pick("+", "-")+" INTERVAL '%s')", x(), same2(g.pick("1 day", "1 month -2 hours", "-3 years 4 seconds", "0.5 seconds")))
	case 2:
		return form("timestamp(%s)", "(%s::timestamptz)", g.date(depth-1))
	case 3:
		return both("date_trunc('"+g.pick("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")+"', %s)", x())
	case 4:
		return form("timestamp_seconds(%s)", "to_timestamp(%s)", same2(g.pick("0", "-1", "1700000000", "k")))
	}
	return g.choice(depth, g.stamp)
}

// choice is one of the expressions that exist for every type.
func (g generator) choice(depth int, of func(int) pair) pair {
	x, y := of(depth-1), of(depth-1)
	switch g.IntN(5) {
	case 0:
		return both("CASE WHEN %s THEN %s ELSE %s END", g.boolean(depth-1), x, y).lazily()
	case 1:
		return both("CASE WHEN %s THEN %s END", g.boolean(depth-1), x).lazily()
	case 2:
		return both("coalesce(%s, %s)", x, y).lazily()
	case 3:
		return both("nullif(%s, %s)", x, x).lazily()
	}
	return form("if(%s, %s, NULL)", "CASE WHEN %s THEN %s END", g.boolean(depth-1), x).lazily()
}

func (g generator) boolean(depth int) pair {
	if depth == 0 {
		return same2(g.pick("x", "y", "TRUE", "FALSE", "(k = NULL)")).lazily()
	}
	b := func() pair { return g.boolean(depth - 1) }
	kinds := []func(int) pair{g.integer, g.numeric, g.text, g.date, g.stamp, g.boolean}
	of := kinds[g.IntN(len(kinds))]
	v := func() pair { return of(depth - 1) }
	not := g.pick("", "NOT ")
	switch g.IntN(16) {
	case 0:
		return both("(%s AND %s)", b(), b()).lazily()
	case 1:
		return both("(%s OR %s)", b(), b()).lazily()
	case 2:
		return both("(NOT %s)", b())
	case 3, 4:
		return both("(%s "+g.pick("=", "<>", "<", "<=", ">", ">=")+" %s)", v(), v())
	case 5:
		return both("(%s "+g.pick("=", "<>", "<", ">=")+" %s)", g.integer(depth-1), g.numeric(depth-1))
	case 6:
		return both("(%s IS "+not+"DISTINCT FROM %s)", v(), v())
	case 7:
		return form("(%s <=> %s)", "(%s IS NOT DISTINCT FROM %s)", v(), v())
	case 8:
		return both("(%s IS "+not+"NULL)", v())
	case 9:
		return both("(%s IS "+not+g.pick("TRUE", "FALSE", "UNKNOWN")+")", b())
	case 10:
		return both("(%s "+not+"IN (%s, %s, %s))", v(), v(), v(), same2("NULL")).lazily()
	case 11:
		return both("(%s "+not+"IN (%s, %s))", v(), v(), v()).lazily()
	case 12:
		return both("(%s "+not+"BETWEEN %s AND %s)", v(), v(), v()).lazily()
	case 13, 14:
		pattern := g.pick("'a%%'", "'%%E'", "'_E%%'", "'%%l_t%%'", "''", "'%%'", "'_'", `'\%%_'`, "'%%,%%,_'", "'%%!_%%' ESCAPE '!'", `'%%\_%%' ESCAPE ''`, "'__'")
		return both("(%s "+not+g.pick("LIKE", "ILIKE")+" "+pattern+")", g.text(depth-1))
	}
	return both("starts_with(%s, %s)", g.text(depth-1), g.text(0))
}

// sharedColumns are the columns of the table in both worlds.
var sharedColumns = []struct {
	name   string
	kind   change.Kind
	values []string
}{
	{"a", change.Int64, []string{"0", "1", "-7", "9223372036854775807", "-9223372036854775808", "12345"}},
	{"b", change.Int64, []string{"2", "-1", "1000000007", "3"}},
	{"k", change.Int32, []string{"0", "5", "-2147483648", "365"}},
	{"m", change.Int16, []string{"-32768", "32767", "4"}},
	{"p", change.Numeric, []string{"0", "1.10", "-99999999999999999999.99", "0.000000000000000001", "NaN", "Infinity", "-Infinity", "12.5"}},
	{"q", change.Numeric, []string{"3", "-0.7", "100.00", "0.0000", "7777777777.7"}},
	{"s", change.Text, []string{"DELETE", "", "日本語", "a,b,,c", " 42 ", "1.5", "it''s", "%_\\", "-17"}},
	{"t", change.Text, []string{"E", "delete", "b", "-3", "1e5", "Zz"}},
	{"x", change.Bool, []string{"t", "f"}},
	{"y", change.Bool, []string{"t", "f"}},
	{"d", change.Date, []string{"2024-02-29", "1969-12-31", "0044-03-15 BC", "2000-01-31"}},
	{"e", change.Date, []string{"2024-12-30", "0001-01-01", "1582-10-10"}},
	{"at", change.TimestampTZ, []string{"2024-02-29 13:14:15.123456+00", "1969-12-31 23:59:59.5+00", "0044-03-15 01:02:03+00 BC", "2023-01-01 00:00:00+00"}},
	{"j", change.JSONB, []string{`{"a": {"b": [1, "x", null], "k k": 2.50}, "b": "語\u0041", "n": null}`, `{"l": [1, 2.0, {"z": true}], "a": "s"}`, `[1]`, `7`}},
}

// PostgreSQL is the judge of the language that both share: values, types, NULLs
// and errors of random expressions over random rows.
func TestAgreesWithPostgreSQL(t *testing.T) {
	const rows = 40
	count := 1500
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TAILRACE_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("TAILRACE_TEST_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dbtest.Postgres(t).DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	columns, table := prepareTable(ctx, t, conn, r, rows)
	failures, judged, errors, lazy := 0, 0, 0, 0
	for range count {
		g := generator{r}
		p := g.pickOf(1+g.IntN(3), g.boolean, g.boolean, g.integer, g.numeric, g.text, g.date, g.stamp)
		program, err := Compile(p.ours, columns)
		if err != nil {
			t.Fatalf("%s\n%s: %v", p.ours, p.pg, err)
		}
		result, err := conn.Query(ctx, `SELECT pg_temp.attempt($1, n) FROM shared ORDER BY n`, p.pg)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := pgx.CollectRows(result, pgx.RowTo[*string])
		if err != nil {
			t.Fatalf("%s: %v", p.pg, err)
		}
		for i, row := range table {
			mine := attempt(program, row)
			want := "NULL"
			if theirs[i] != nil {
				want = *theirs[i]
			}
			judged++
			if strings.HasPrefix(want, "error") {
				errors++
				if mine == "error" {
					continue
				}
			}
			if p.lazy && (mine == "error") != strings.HasPrefix(want, "error") {
				lazy++
				continue
			}
			if mine == want {
				continue
			}
			if failures++; failures <= 10 {
				t.Errorf("row %s\n  ours  %s = %s\n  their %s = %s", shown(row), p.ours, mine, p.pg, want)
			}
			break
		}
	}
	t.Logf("%d outcomes, %d of them errors, in %d only one side failed", judged, errors, lazy)
	if failures > 0 || errors*2 > judged || lazy*50 > judged {
		t.Errorf("%d outcomes differ", failures)
	}
}

func prepareTable(ctx context.Context, t *testing.T, conn *pgx.Conn, r *rand.Rand, rows int) ([]Column, [][]change.Value) {
	t.Helper()
	var columns []Column
	create := "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; CREATE TEMP TABLE shared (n int"
	for _, c := range sharedColumns {
		columns = append(columns, Column{c.name, typeOf(c.kind)})
		create += ", " + c.name + " " + typeOf(c.kind).Name
	}
	table := make([][]change.Value, rows)
	insert := ""
	for n := range table {
		insert += fmt.Sprintf("; INSERT INTO shared VALUES (%d", n)
		for _, c := range sharedColumns {
			if r.IntN(6) == 0 {
				table[n] = append(table[n], change.Value{State: change.Null})
				insert += ", NULL"
				continue
			}
			v := c.values[r.IntN(len(c.values))]
			insert += ", '" + v + "'"
			table[n] = append(table[n], change.Value{State: change.AsText})
		}
		insert += ")"
	}
	if _, err := conn.Exec(ctx, create+")"+insert); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Exec(ctx, `CREATE FUNCTION pg_temp.attempt(expression text, which int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	v text;
	k text;
BEGIN
	EXECUTE format('SELECT (v)::text, pg_typeof(v)::text FROM (SELECT %s AS v FROM shared WHERE n = $1 OFFSET 0) AS one', expression) INTO v, k USING which;
	RETURN v || ' ' || k;
EXCEPTION
	WHEN syntax_error_or_access_rule_violation THEN RAISE;
	WHEN others THEN RETURN 'error ' || SQLSTATE;
END $$`)
	if err != nil {
		t.Fatal(err)
	}
	// The values as the server prints them.
	names := make([]string, len(sharedColumns))
	for i, c := range sharedColumns {
		names[i] = c.name + "::text"
		if c.kind == change.Bool {
			names[i] = "left(" + c.name + "::text, 1)"
		}
	}
	result, err := conn.Query(ctx, "SELECT ARRAY["+strings.Join(names, ", ")+"] FROM shared ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	printed, err := pgx.CollectRows(result, pgx.RowTo[[]*string])
	if err != nil {
		t.Fatal(err)
	}
	for n := range table {
		for i, v := range printed[n] {
			if v != nil {
				table[n][i].Data = []byte(*v)
			}
		}
	}
	return columns, table
}

func attempt(p *Program, row []change.Value) string {
	v, _, err := p.Eval(row, nil)
	switch {
	case err != nil:
		return "error"
	case v.State == change.Null:
		return "NULL"
	case p.Type().Kind == change.Bool:
		return map[string]string{"t": "true", "f": "false"}[string(v.Data)] + " boolean"
	}
	name, _, _ := strings.Cut(p.Type().Name, "(") // pg_typeof knows no modifiers
	return string(v.Data) + " " + name
}

func shown(row []change.Value) string {
	var b strings.Builder
	for i, v := range row {
		fmt.Fprintf(&b, "%s=%c%s ", sharedColumns[i].name, v.State, v.Data)
	}
	return b.String()
}
