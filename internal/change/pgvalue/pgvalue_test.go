package pgvalue_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func typ(k change.Kind) change.Type { return change.Type{Kind: k, BuiltIn: true} }

func array(k change.Kind) change.Type {
	e := typ(k)
	return change.Type{Kind: change.Array, BuiltIn: true, Elem: &e}
}

// family is one SQL type with edge values as SQL literals and a maker of random
// ones.
type family struct {
	sql    string
	typ    change.Type
	edges  []string
	random func(*rand.Rand) string
}

func families() []family {
	return []family{
		{"boolean", typ(change.Bool), []string{"t", "f"}, nil},
		{"smallint", typ(change.Int16), []string{"-32768", "32767", "0", "-1"}, nil},
		{"integer", typ(change.Int32), []string{"-2147483648", "2147483647", "0"}, nil},
		{"bigint", typ(change.Int64), []string{"-9223372036854775808", "9223372036854775807", "0", "-1", "10"}, nil},
		{"real", typ(change.Float32), []string{"NaN", "Infinity", "-Infinity", "-0", "0", "1e-45", "3.4028235e38", "16777217", "33554432", "67108864", "1e6", "999999", "123456", "1234567", "0.0001", "0.00001", "1e10", "1.5e20"},
			func(r *rand.Rand) string {
				return fmt.Sprint(math.Float32frombits(r.Uint32()))
			}},
		{"double precision", typ(change.Float64), []string{"NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "1e14", "1e15", "123456789012345", "1234567890123456", "0.0001", "0.00001", "9007199254740993", "9007199254740992", "1e22", "1e23", "9.5e-05", "4503599627370496.5", "2e16", "5e-310"},
			func(r *rand.Rand) string {
				switch r.IntN(3) {
				case 0:
					return fmt.Sprint(math.Float64frombits(r.Uint64()))
				case 1: // where shortest digits lie on an interval's edge
					return fmt.Sprint(math.Ldexp(float64(r.Uint64()>>11), r.IntN(60)))
				}
				return fmt.Sprint(float64(r.IntN(2000000)-1000000) / 1000)
			}},
		{"numeric", typ(change.Numeric), []string{"NaN", "0", "0.00", "-0.0001", "1", "10000", "9999", "100000000", "0.0001", "0.00010", "123456789012345678901234567890.1234567890", "1e130", "1e-130", "-12345.678900", "1e-16383", "Infinity", "-Infinity"},
			func(r *rand.Rand) string {
				s := ""
				for range 1 + r.IntN(40) {
					s += fmt.Sprint(r.IntN(10))
				}
				if r.IntN(2) == 0 {
					s = "-" + s
				}
				if n := r.IntN(30); n > 0 {
					s += "."
					for range n {
						s += fmt.Sprint(r.IntN(10) * r.IntN(2))
					}
				}
				return s
			}},
		{"text", typ(change.Text), []string{"", "a", "é\t\n\\", `unchanged_toast`, `\N`, "日本語"}, nil},
		{"bytea", typ(change.Bytes), []string{"", `\x00ff10`, `\x5c`}, nil},
		{"date", typ(change.Date), []string{"infinity", "-infinity", "2000-01-01", "1999-12-31", "1970-01-01", "0044-03-15 BC", "0001-12-31 BC", "0001-01-01", "4713-11-24 BC", "5874897-12-31", "1600-02-29", "1900-02-28", "10000-01-01"},
			func(r *rand.Rand) string {
				return time.Unix(r.Int64N(240_000_000_000)-60_000_000_000, 0).UTC().Format("2006-01-02")
			}},
		{"time", typ(change.Time), []string{"00:00", "24:00:00", "23:59:59.999999", "12:34:56.1", "00:00:00.000001"}, nil},
		{"timetz", typ(change.TimeTZ), []string{"00:00+00", "24:00:00-15:59:59", "23:59:59.999999+15:59", "12:34:56.1-03:30", "01:02:03+05:45:10"}, nil},
		{"timestamp", typ(change.Timestamp), []string{"infinity", "-infinity", "2000-01-01", "1969-12-31 23:59:59.999999", "1500-01-01", "0044-03-15 12:00 BC", "4713-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "0001-01-01"}, nil},
		{"timestamptz", typ(change.TimestampTZ), []string{"infinity", "-infinity", "2000-01-01 00:00+00", "1969-12-31 23:59:59.999999+00", "0001-01-01 00:00:00+00 BC", "4713-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "2024-03-10 02:30+05:45"}, nil},
		{"interval", typ(change.Interval), []string{"0", "1 year", "-1 year", "2 years -1 mons", "1 mon -2 days 00:00:00.000001", "-178000000 years", "178000000 years", "-1 day +00:00:01", "1 day -00:00:01", "-0.5 sec", "100:00:00", "2562047788:00:54.775807", "14 mons -3 days 04:05:06.7", "-1 mons +1 day -1 hour", "1 day", "2 days"},
			func(r *rand.Rand) string {
				return fmt.Sprintf("%d mons %d days %d microseconds", r.IntN(2000)-1000, r.IntN(2000)-1000, r.Int64N(1e15)-5e14)
			}},
		{"uuid", typ(change.UUID), []string{"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "01234567-89ab-cdef-0123-456789abcdef"}, nil},
		{"json", typ(change.JSON), []string{`{"a": 1,  "a":2}`, `1e400`, `"x"`}, nil},
		{"jsonb", typ(change.JSONB), []string{`{"n":12345678901234567890123}`, `[]`, `null`}, nil},
		{"mood", change.Type{Kind: change.Enum}, []string{"a b", "ok"}, nil},
		{"integer[]", array(change.Int32), []string{"{}", "{1,2,3}", "[3:5]={1,2,3}", "[0:1][1:2]={{1,2},{3,NULL}}", "{{{1},{2}}}", "[-2147483648:-2147483647]={1,2}"}, nil},
		{"text[]", array(change.Text), []string{`{"",NULL,"NULL","null","a b","a,b","{}","\"q\"","\\",plain,"é","a\tb",nullx}`, `{"\n"}`}, nil},
		{"numeric[]", array(change.Numeric), []string{"{NaN,1.50,-0.0}"}, nil},
		{"timestamptz[]", array(change.TimestampTZ), []string{`{"2024-01-01 00:00:00+00",infinity}`}, nil},
		{"bytea[]", array(change.Bytes), []string{`{"\\x00ff",""}`}, nil},
		{"interval[]", array(change.Interval), []string{`{"1 day","-1 mons"}`}, nil},
		{"mood[]", change.Type{Kind: change.Array, Elem: &change.Type{Kind: change.Enum}}, []string{`{"a b",ok,NULL}`}, nil},
	}
}

var pinned = []string{
	"SET DateStyle = 'ISO'", "SET TimeZone = 'UTC'", "SET IntervalStyle = 'postgres'", "SET bytea_output = 'hex'", "SET extra_float_digits = 1",
}

// TestTextEqualsTheServersOutput asks a real server for both forms of many
// values and compares: the text made from the binary form, and the typed reading
// of both forms.
func TestTextEqualsTheServersOutput(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, s := range dbtest.Postgreses(t) {
		r := rand.New(rand.NewPCG(seed, 0))
		dsn := s.Database(t)
		s.Exec(t, dsn, "CREATE TYPE mood AS ENUM ('a b', 'ok')")
		conn := s.Connect(t, dsn).PgConn()
		ctx := context.Background()
		for _, sql := range pinned {
			if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range families() {
			values := f.edges
			for range 3000 {
				if f.random == nil {
					break
				}
				values = append(values, f.random(r))
			}
			for len(values) > 0 {
				some := values[:min(len(values), 500)]
				values = values[len(some):]
				var params [][]byte
				var list []string
				for i, v := range some {
					params = append(params, []byte(v))
					list = append(list, fmt.Sprintf("($%d::%s)", i+1, f.sql))
				}
				sql := "SELECT * FROM (VALUES " + strings.Join(list, ",") + ") v"
				text := conn.ExecParams(ctx, sql, params, nil, nil, []int16{0}).Read()
				bin := conn.ExecParams(ctx, sql, params, nil, nil, []int16{1}).Read()
				if text.Err != nil || bin.Err != nil {
					t.Fatalf("%s: %v %v", f.sql, text.Err, bin.Err)
				}
				for i := range text.Rows {
					compare(t, f, text.Rows[i][0], bin.Rows[i][0])
				}
			}
		}
	}
}

func compare(t *testing.T, f family, text, bin []byte) {
	t.Helper()
	asText := change.Value{State: change.AsText, Data: text}
	asBinary := change.Value{State: change.Binary, Data: bin}
	got, err := pgvalue.Text([]byte("x"), asBinary, f.typ)
	if err != nil || string(got) != "x"+string(text) {
		t.Errorf("%s: text of binary %x is %q (%v), the server prints %q", f.sql, bin, got, err, text)
	}
	a, errA := read(asText, f.typ)
	b, errB := read(asBinary, f.typ)
	if a != b || errA != nil || errB != nil {
		t.Errorf("%s: %q reads as %s (%v), its binary form as %s (%v)", f.sql, text, a, errA, b, errB)
	}
}

// read decodes with the typed functions and prints the result again.
func read(v change.Value, t change.Type) (string, error) {
	switch t.Kind {
	case change.Bool:
		b, err := pgvalue.Bool(v)
		return fmt.Sprint(b), err
	case change.Int16, change.Int32, change.Int64:
		n, err := pgvalue.Int64(v, t.Kind)
		return fmt.Sprint(n), err
	case change.Float32:
		n, err := pgvalue.Float32(v)
		return fmt.Sprint(n, math.Signbit(float64(n))), err
	case change.Float64:
		n, err := pgvalue.Float64(v)
		return fmt.Sprint(n, math.Signbit(n)), err
	case change.Numeric:
		out := ""
		for _, scale := range []int{0, 1, 2, 3, 4, 5, 7, 10, 38} {
			n, s, err := pgvalue.Numeric(v, scale)
			out += fmt.Sprintf("%s %d %v|", pgvalue.AppendInt128(nil, n, scale), s, err)
		}
		return out, nil
	case change.Bytes:
		b, err := pgvalue.Bytes(nil, v)
		return string(b), err
	case change.Date:
		d, s, err := pgvalue.Date(v)
		return fmt.Sprint(d, s), err
	case change.Time:
		n, err := pgvalue.Time(v)
		return fmt.Sprint(n), err
	case change.TimeTZ:
		n, e, err := pgvalue.TimeTZ(v)
		return fmt.Sprint(n, e), err
	case change.Timestamp, change.TimestampTZ:
		n, s, err := pgvalue.Timestamp(v, t.Kind)
		return fmt.Sprint(n, s), err
	case change.Interval:
		i, s, err := pgvalue.ReadInterval(v)
		return fmt.Sprint(i, s), err
	case change.UUID:
		u, err := pgvalue.UUID(v)
		return string(pgvalue.AppendUUID(nil, u)), err
	case change.Text, change.JSON, change.JSONB, change.Enum:
		c, err := pgvalue.Chars(v, t.Kind)
		return string(c), err
	}
	return "", nil
}

func TestNumericIsExactOrRefused(t *testing.T) {
	for _, c := range []struct {
		in    string
		scale int
		want  string
	}{
		{"1.25", 4, "1.2500"}, {"-1.25", 2, "-1.25"}, {"0.001", 2, ""}, {"0.100", 2, "0.10"},
		{"99999999999999999999999999999999999999", 0, "99999999999999999999999999999999999999"},
		{"100000000000000000000000000000000000000", 0, ""}, {"-0.00", 2, "0.00"},
	} {
		n, _, err := pgvalue.Numeric(change.Value{State: change.AsText, Data: []byte(c.in)}, c.scale)
		got := string(pgvalue.AppendInt128(nil, n, c.scale))
		if err != nil {
			got = ""
		}
		if got != c.want {
			t.Errorf("%s at scale %d: %q (%v), want %q", c.in, c.scale, got, err, c.want)
		}
	}
}

func TestOldByteaEscapesAreRead(t *testing.T) {
	got, err := pgvalue.Bytes(nil, change.Value{State: change.AsText, Data: []byte(`a\\b\001\377`)})
	if err != nil || string(got) != "a\\b\x01\xff" {
		t.Fatalf("%q %v", got, err)
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	num := []byte{0, 2, 0, 0, 0, 0, 0, 2, 0, 12, 13, 72}
	buf := make([]byte, 0, 256)
	for name, fn := range map[string]func(){
		"numeric":   func() { pgvalue.Numeric(change.Value{State: change.Binary, Data: num}, 2) },
		"numeric t": func() { pgvalue.Numeric(change.Value{State: change.AsText, Data: []byte("12.34")}, 2) },
		"float text": func() {
			buf = pgvalue.AppendFloat(buf[:0], 1234.5678, 64)
		},
		"timestamp": func() {
			pgvalue.Timestamp(change.Value{State: change.AsText, Data: []byte("2024-01-02 03:04:05.6")}, change.Timestamp)
		},
		"malformed": func() { pgvalue.Int64(change.Value{State: change.AsText, Data: []byte("x")}, change.Int64) },
		"text": func() {
			buf, _ = pgvalue.Text(buf[:0], change.Value{State: change.Binary, Data: num}, typ(change.Numeric))
		},
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func FuzzNothingPanics(f *testing.F) {
	f.Add([]byte("2024-01-01 00:00:00+00 BC"), byte(change.AsText))
	f.Add([]byte("1 year -2 mons +03:04:05.6"), byte(change.AsText))
	f.Add([]byte("[0:1]={1,2}"), byte(change.AsText))
	f.Add(binary.BigEndian.AppendUint64(nil, 1<<63), byte(change.Binary))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 23, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 7}, byte(change.Binary))
	f.Add([]byte{0, 2, 127, 255, 0, 0, 0, 2, 0, 12, 13, 72}, byte(change.Binary))
	f.Fuzz(func(t *testing.T, data []byte, state byte) {
		v := change.Value{State: change.State(state), Data: data}
		for _, fam := range families() {
			_, _ = read(v, fam.typ)
			_, _ = pgvalue.Text(nil, v, fam.typ)
		}
	})
}
