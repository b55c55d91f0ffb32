package files

import (
	"math"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"tailrace/internal/change"
)

func TestDecimalsOfEveryWidth(t *testing.T) {
	for _, c := range []struct {
		bytes string
		scale int
		want  string
	}{
		{"", 0, "0"}, {"\x7f", 0, "127"}, {"\x80", 0, "-128"}, {"\xff", 2, "-0.01"}, {"\x00\x80", 1, "12.8"}, {"\x00", 2, "0.00"}, {"\x7b", 3, "0.123"}, {"\x7b", 2, "1.23"},
		{"\x05", -2, "500"}, {"\x00", -2, "0"},
		{"\x00\xff\xff\xff\xff\xff\xff\xff\xff", 1, "1844674407370955161.5"}, {"\xff\x00\x00\x00\x00\x00\x00\x00\x00", 0, "-18446744073709551616"},
	} {
		if got := string(appendDecimal(nil, bigEndian([]byte(c.bytes)), c.scale)); got != c.want {
			t.Errorf("%x at scale %d: %s, want %s", c.bytes, c.scale, got, c.want)
		}
	}
}

// What a type of PostgreSQL cannot hold is rescued as the file has it.
func TestParquetValuesBeyondTheRangeAreRescued(t *testing.T) {
	stamp := func(unit format.TimeUnitValue) *node {
		n := &node{exact: integerText}
		n.describeTimestamp(&format.TimestampType{Unit: format.TimeUnit{Value: unit}, IsAdjustedToUTC: true})
		return n
	}
	for _, c := range []struct {
		n       *node
		v       int64
		text    string // empty: it does not fit
		rescued string
	}{
		{stamp(&format.MicroSeconds{}), -62135596800000000, "0001-01-01 00:00:00+00", ""},
		{stamp(&format.MicroSeconds{}), math.MinInt64, "", "-9223372036854775808"},
		{stamp(&format.MicroSeconds{}), math.MaxInt64, "294247-01-10 04:00:54.775807+00", ""},
		{stamp(&format.MilliSeconds{}), math.MaxInt64, "", "9223372036854775807"},
		{stamp(&format.MilliSeconds{}), -1, "1969-12-31 23:59:59.999+00", ""},
		{stamp(&format.NanoSeconds{}), -1, "", `"1969-12-31 23:59:59.999999999+00"`},
		{stamp(&format.NanoSeconds{}), -1000, "1969-12-31 23:59:59.999999+00", ""},
	} {
		v := parquet.ValueOf(c.v)
		text, ok := c.n.print(nil, v)
		switch {
		case ok != (c.text != "") || ok && string(text) != c.text:
			t.Errorf("%d: %s, %v, want %s", c.v, text, ok, c.text)
		case !ok && string(c.n.scalar(nil, v)) != c.rescued:
			t.Errorf("%d is rescued as %s, want %s", c.v, c.n.scalar(nil, v), c.rescued)
		}
	}
	for days, want := range map[int32]string{-719162: "0001-01-01", math.MinInt32: "", math.MaxInt32: "", 2145042905: "5874897-12-31", 2145042906: ""} {
		text, ok := printDate(nil, parquet.ValueOf(days))
		if ok != (want != "") || string(text) != want {
			t.Errorf("day %d: %s", days, text)
		}
	}
}

func TestTypesWidenWithoutLoss(t *testing.T) {
	money, _ := parseType("decimal(5,2)")
	wider, _ := parseType("decimal(7,1)")
	for _, c := range []struct{ a, b, want change.Type }{
		{typeInt32, typeInt32, typeInt32}, {typeInt16, typeInt64, typeInt64}, {typeInt64, typeInt32, typeInt64}, {typeInt64, typeNumeric, typeNumeric},
		{money, money, money}, {money, wider, typeNumeric}, {typeInt16, money, typeNumeric}, {typeFloat32, typeFloat64, typeFloat64}, {typeFloat64, typeFloat32, typeFloat64},
		{typeInt64, typeFloat64, typeText}, {typeDate, typeTimestamp, typeText}, {typeJSONB, typeText, typeText},
	} {
		if got := widen(c.a, c.b); got.Name != c.want.Name {
			t.Errorf("%s and %s: %s, want %s", c.a.Name, c.b.Name, got.Name, c.want.Name)
		}
	}
}
