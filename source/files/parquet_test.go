package files_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"

	"tailrace/source"
	"tailrace/source/files"
)

// parquetFile returns what parquet-go writes of rows.
func parquetFile[T any](t testing.TB, rows []T, options ...parquet.WriterOption) string {
	t.Helper()
	var buf bytes.Buffer
	w := parquet.NewGenericWriter[T](&buf, options...)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

type parquetPart struct {
	Name  string  `parquet:"name"`
	Price *int64  `parquet:"price,optional,decimal(2:18)"`
	Tags  []int32 `parquet:"tags,list"`
}

type parquetRow struct {
	Flag    bool             `parquet:"flag"`
	Tiny    int8             `parquet:"tiny"`
	Small   uint16           `parquet:"small"`
	Int     *int32           `parquet:"int,optional"`
	Long    int64            `parquet:"long"`
	ULong   uint64           `parquet:"ulong"`
	Real    float32          `parquet:"real"`
	Double  float64          `parquet:"double"`
	Amount  int64            `parquet:"amount,decimal(2:12)"`
	Text    *string          `parquet:"text,optional"`
	Raw     []byte           `parquet:"raw"`
	Doc     string           `parquet:"doc,json"`
	Day     int32            `parquet:"day,date"`
	Clock   int64            `parquet:"clock,time(microsecond)"`
	Millis  int64            `parquet:"millis,timestamp(millisecond)"`
	Wall    int64            `parquet:"wall,timestamp(microsecond:local)"`
	Nanos   int64            `parquet:"nanos,timestamp(nanosecond)"`
	Old     deprecated.Int96 `parquet:"old"`
	ID      [16]byte         `parquet:"id,uuid"`
	Part    *parquetPart     `parquet:"part,optional"`
	Parts   []parquetPart    `parquet:"parts,list"`
	Plain   []int64          `parquet:"plain"`
	Lookup  map[string]int64 `parquet:"lookup"`
	Numbers map[int32]string `parquet:"numbers"`
}

func parquetSample() []parquetRow {
	n, price, text := int32(-7), int64(1250), "naïve \"q\""
	micros := time.Date(2024, 2, 29, 23, 59, 58, 123456000, time.UTC).UnixMicro()
	return []parquetRow{{
		Flag: true, Tiny: -8, Small: 65535, Int: &n, Long: 1 << 40, ULong: 1<<64 - 1, Real: 0.1, Double: 1e100, Amount: -5,
		Text: &text, Raw: []byte{0, 255}, Doc: `{ "a": [1, 2] }`, Day: 19782, Clock: 3_600_000_001, Millis: micros / 1000, Wall: micros, Nanos: micros*1000 + 1,
		Old: int96(micros), ID: [16]byte{1, 2, 3, 15: 255},
		Part: &parquetPart{Name: "p", Price: &price, Tags: []int32{1, 2}}, Parts: []parquetPart{{Name: "a"}, {Name: "b", Tags: []int32{3}}},
		Plain: []int64{5, 6}, Lookup: map[string]int64{"k": 9}, Numbers: map[int32]string{4: "four"},
	}, {Doc: "null", Day: -25567, Old: int96(0)}}
}

func int96(micros int64) deprecated.Int96 {
	const day = 86_400_000_000
	nanos := uint64(micros%day) * 1000
	return deprecated.Int96{uint32(nanos), uint32(nanos >> 32), uint32(micros/day + 2440588)}
}

func TestParquetTypes(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.parquet", Format: "parquet"})
	r.write("a.parquet", parquetFile(t, parquetSample()))
	same(t, "columns", r.columns(), "flag boolean, tiny smallint, small integer, int integer, long bigint, ulong numeric, real real, double double precision, "+
		"amount numeric(12,2), text text, raw bytea, doc jsonb, day date, clock time without time zone, millis timestamp with time zone, "+
		"wall timestamp without time zone, nanos timestamp with time zone, old timestamp with time zone, id uuid, part jsonb, parts jsonb, plain jsonb, lookup jsonb, numbers jsonb")
	res := r.drain(source.FollowOptions{})
	if res.err != nil {
		t.Fatal(res.err)
	}
	sameRows(t, res.rows(t), []string{
		`1|t|-8|65535|-7|1099511627776|18446744073709551615|0.1|1e+100|-0.05|naïve "q"|\x00ff|{"a":[1,2]}|2024-02-29|01:00:00.000001|` +
			`2024-02-29 23:59:58.123+00|2024-02-29 23:59:58.123456|~|2024-02-29 23:59:58.123456+00|01020300-0000-0000-0000-0000000000ff|` +
			`{"name":"p","price":12.50,"tags":[1,2]}|[{"name":"a","price":null,"tags":[]},{"name":"b","price":null,"tags":[3]}]|[5,6]|{"k":9}|{"4":"four"}|` +
			`{"nanos":"2024-02-29 23:59:58.123456001+00","_file_path":"a.parquet"}`,
		`2|f|0|0|~|0|0|0|0|0.00|~|\x|null|1900-01-01|00:00:00|1970-01-01 00:00:00+00|1970-01-01 00:00:00|1970-01-01 00:00:00+00|1970-01-01 00:00:00+00|` +
			`00000000-0000-0000-0000-000000000000|~|[]|[]|{}|{}|~`,
	})
	if res.txs[0].File.Rows != 2 {
		t.Error(res.txs[0].File)
	}
}

func TestParquetColumnsFitDeclaredTypes(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.parquet", Format: "parquet", Columns: columns(
		"LONG", "int", "int", "bigint", "amount", "numeric(12,1)", "day", "timestamp", "millis", "text", "part", "text", "doc", "json", "flag", "jsonb", "missing", "text", "wall", "timestamptz")})
	r.write("a.parquet", parquetFile(t, parquetSample()))
	res := r.drain(source.FollowOptions{})
	if res.err != nil {
		t.Fatal(res.err)
	}
	rows := res.rows(t)
	for i, want := range []string{
		`1|~|-7|~|2024-02-29 00:00:00|2024-02-29 23:59:58.123+00|{"name":"p","price":12.50,"tags":[1,2]}|{ "a": [1, 2] }|true|~|2024-02-29 23:59:58.123456+00|{"long":1099511627776,"amount":-0.05,"tiny":-8,"small":65535,"ulong":18446744073709551615,`,
		`2|0|~|0.0|1900-01-01 00:00:00|1970-01-01 00:00:00+00|~|null|false|~|1970-01-01 00:00:00+00|{"tiny":0,`,
	} {
		if !strings.HasPrefix(rows[i], want) {
			t.Errorf("row %d:\n got %s\nwant %s", i+1, rows[i], want)
		}
	}
}

func TestParquetOverSeveralRowGroupsComesInPieces(t *testing.T) {
	type row struct {
		ID   int64  `parquet:"id"`
		Name string `parquet:"name,zstd"`
	}
	var rows []row
	for i := range 20_000 {
		rows = append(rows, row{int64(i), fmt.Sprintf("name %d", i)})
	}
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "parquet"})
	r.write("a", parquetFile(t, rows, parquet.MaxRowsPerRowGroup(3000)))
	res := r.drain(source.FollowOptions{PieceBytes: 64 << 10})
	if res.err != nil || res.bytes > 70<<10 {
		t.Fatal(res.err, res.bytes)
	}
	for i, line := range res.rows(t) {
		if want := fmt.Sprintf("%d|%d|name %d|~", i+1, i, i); line != want {
			t.Fatalf("row %d: %s", i, line)
		}
	}
	same(t, "rows", res.txs[0].File.Rows, len(rows))
}

func TestDamagedParquetIsRefused(t *testing.T) {
	type row struct {
		ID int64  `parquet:"id"`
		S  string `parquet:"s"`
	}
	whole := parquetFile(t, []row{{1, "SECRET"}, {2, "SECRET"}})
	flip := []byte(whole)
	for i := 4; i < 60; i++ {
		flip[i] ^= 0x5a
	}
	for name, c := range map[string]struct{ content, says string }{
		"empty":       {"", "0 bytes are no Parquet file"},
		"cut":         {whole[:len(whole)-9], "no footer: it is cut off"},
		"json":        {`{"id":1,"s":"SECRET"}`, "does not begin as Parquet does"},
		"long footer": {whole[:len(whole)-8] + "\xff\xff\xff\x7fPAR1", "no footer"},
		"pages":       {string(flip), "row 1: the Parquet data are damaged"},
		"footer":      {whole[:len(whole)-60] + strings.Repeat("\x1c", 52) + whole[len(whole)-8:], "the Parquet data are damaged"},
		"text":        {parquetFile(t, []row{{1, "ok"}, {2, "SECRET\xff"}}), "row 2: bytes that are not UTF-8"},
		"nul":         {parquetFile(t, []row{{1, "SECRET\x00"}}), "row 1: the character NUL"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, files.Relation{Name: "r", Path: "*.parquet", Format: "parquet", Columns: columns("id", "bigint", "s", "text")})
			r.write("a.parquet", c.content)
			res := r.drain(source.FollowOptions{})
			if len(res.txs) > 0 {
				t.Error("it was handed on")
			}
			refused(t, res.err, "relation r, file a.parquet: ", c.says)
			if strings.Contains(res.err.Error(), "SECRET") {
				t.Error("the error holds a value: ", res.err)
			}
		})
	}
}

// Any flipped byte of a file gives an error or rows, never a panic.
func TestFlippedBytesOfParquetNeverPanic(t *testing.T) {
	whole := []byte(parquetFile(t, parquetSample()))
	path := filepath.Join(t.TempDir(), "a.parquet")
	for i := 4; i < len(whole)-8; i += 7 {
		b := bytes.Clone(whole)
		b[i] ^= 0xff
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		os.Chtimes(path, old, old)
		r := newRig(t, files.Relation{Name: "r", Path: path, Format: "parquet", Columns: columns("long", "bigint", "part", "jsonb")})
		r.drain(source.FollowOptions{})
	}
}
