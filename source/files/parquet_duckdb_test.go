//go:build !noduckdb

package files_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2"

	"tailrace/source"
	"tailrace/source/files"
)

// Another writer's Parquet: DuckDB's, with its own encodings, nested values with NULLs
// at every level, and decimals of every width.
func TestParquetWrittenByDuckDB(t *testing.T) {
	db, err := sql.Open("duckdb", "")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r := newRig(t, files.Relation{Name: "r", Path: "*.parquet", Format: "parquet"})
	full := filepath.Join(r.root, "a.parquet")
	if _, err := db.Exec(`SET TimeZone = 'UTC'; COPY (SELECT * FROM (VALUES
  (1, 1.5::DECIMAL(4,1), -0.05::DECIMAL(18,2), -12345678901234567890.123456::DECIMAL(38,6), 'x', DATE '2024-02-29', TIMESTAMP '2024-02-29 10:20:30.5', TIMESTAMPTZ '2024-02-29 10:20:30+09',
   TIME '10:20:30.25', [1, NULL, 3], {'a': 1, 'b': [{'c': 'q"'}, NULL, {'c': NULL}]}, MAP {'k': 1, 'l': NULL}, [[1], [], NULL, [2, 3]], 200::UTINYINT, 4000000000::UINTEGER, '\x00\xff'::BLOB,
   'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::UUID, 'nan'::DOUBLE, ['nan'::FLOAT, 1.5::FLOAT], true),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (2, 0::DECIMAL(4,1), 0, 0, '', DATE '0044-03-15 (BC)', TIMESTAMP '1600-01-01', TIMESTAMPTZ '1969-12-31 23:59:59.999999+00', TIME '00:00:00', [], {'a': NULL, 'b': []}, MAP {}, [], 0, 0, ''::BLOB,
   '00000000-0000-0000-0000-000000000000'::UUID, '-0'::DOUBLE, [], false)
) v(i, d4, d18, d38, s, day, wall, instant, clock, list, part, map, deep, tiny, uint, raw, id, dbl, floats, flag)) TO '` + full + `' (FORMAT parquet, COMPRESSION zstd)`); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(full, old, old); err != nil {
		t.Fatal(err)
	}
	same(t, "columns", r.columns(), "i integer, d4 numeric(4,1), d18 numeric(18,2), d38 numeric(38,6), s text, day date, wall timestamp without time zone, instant timestamp with time zone, "+
		"clock time without time zone, list jsonb, part jsonb, map jsonb, deep jsonb, tiny smallint, uint bigint, raw bytea, id uuid, dbl double precision, floats jsonb, flag boolean")
	res := r.drain(source.FollowOptions{})
	if res.err != nil {
		t.Fatal(res.err)
	}
	sameRows(t, res.rows(t), []string{
		`1|1|1.5|-0.05|-12345678901234567890.123456|x|2024-02-29|2024-02-29 10:20:30.5|2024-02-29 01:20:30+00|10:20:30.25|[1,null,3]|` +
			`{"a":1,"b":[{"c":"q\""},null,{"c":null}]}|{"k":1,"l":null}|[[1],[],null,[2,3]]|200|4000000000|\x00ff|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|NaN|["NaN",1.5]|t|~`,
		`2|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~|~`,
		`3|2|0.0|0.00|0.000000||0044-03-15 BC|1600-01-01 00:00:00|1969-12-31 23:59:59.999999+00|00:00:00|[]|{"a":null,"b":[]}|{}|[]|0|0|\x|00000000-0000-0000-0000-000000000000|-0|[]|f|~`,
	})
}
