package mysql

import (
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/change"
)

// valueCase is a column type with values as literals, and the texts that must come out;
// an empty want means: whatever the copy says.
type valueCase struct {
	typ    string
	pg     string
	values []string
	want   []string
}

var commonValues = []valueCase{
	{"tinyint", "smallint", []string{"-128", "127", "5"}, []string{"-128", "127", "5"}},
	{"tinyint(1)", "smallint", []string{"-1", "5", "0"}, []string{"-1", "5", "0"}},
	{"tinyint unsigned", "smallint", []string{"255", "0"}, []string{"255", "0"}},
	{"smallint", "smallint", []string{"-32768", "32767"}, []string{"-32768", "32767"}},
	{"smallint unsigned", "integer", []string{"65535"}, []string{"65535"}},
	{"mediumint", "integer", []string{"-8388608", "8388607"}, []string{"-8388608", "8388607"}},
	{"mediumint unsigned", "integer", []string{"16777215"}, []string{"16777215"}},
	{"int", "integer", []string{"-2147483648", "2147483647"}, []string{"-2147483648", "2147483647"}},
	{"int unsigned", "bigint", []string{"4294967295"}, []string{"4294967295"}},
	{"int(5) zerofill", "bigint", []string{"42", "4294967295"}, []string{"42", "4294967295"}},
	{"bigint", "bigint", []string{"-9223372036854775808", "9223372036854775807"}, []string{"-9223372036854775808", "9223372036854775807"}},
	{"bigint unsigned", "numeric(20,0)", []string{"18446744073709551615", "9223372036854775808", "0"}, []string{"18446744073709551615", "9223372036854775808", "0"}},
	{"bigint zerofill", "numeric(20,0)", []string{"18446744073709551615", "7"}, []string{"18446744073709551615", "7"}},
	{"decimal(65,30)", "numeric(65,30)", []string{"12345678901234567890123456789012345.123456789012345678901234567890", "-0.000000000000000000000000000001", "0"},
		[]string{"12345678901234567890123456789012345.123456789012345678901234567890", "-0.000000000000000000000000000001", "0.000000000000000000000000000000"}},
	{"decimal(10,2)", "numeric(10,2)", []string{"1.50", "-99999999.99", "100000000", "-0.01"}[0:2], []string{"1.50", "-99999999.99"}},
	{"decimal(9,0)", "numeric(9,0)", []string{"-1", "999999999"}, []string{"-1", "999999999"}},
	{"decimal(20,9) unsigned", "numeric(20,9)", []string{"10000000000.000000001", "1000000000"}, []string{"10000000000.000000001", "1000000000.000000000"}},
	{"decimal(8,3) zerofill", "numeric(8,3)", []string{"1.5"}, []string{"1.500"}},
	{"float", "real", []string{"16777217", "0.1", "3.4e38", "-1.17549e-38", "123456.789"}, []string{"1.6777216e+07", "0.1", "3.4e+38", "", "123456.79"}},
	{"double", "double precision", []string{"0.1", "1.7976931348623157e308", "-2.2250738585072014e-308", "123456789.123456789", "1e15", "3"}, []string{"0.1", "1.7976931348623157e+308", "-2.2250738585072014e-308", "", "1e+15", "3"}},
	{"real", "double precision", []string{"2.5"}, []string{"2.5"}},
	{"boolean", "smallint", []string{"true", "false"}, []string{"1", "0"}},
	{"bit(1)", "bit(1)", []string{"b'1'", "b'0'"}, []string{"1", "0"}},
	{"bit(12)", "bit(12)", []string{"b'000000001010'", "b'111111111111'"}, []string{"000000001010", "111111111111"}},
	{"bit(64)", "bit(64)", []string{"0xffffffffffffffff", "1"}, []string{strings.Repeat("1", 64), strings.Repeat("0", 63) + "1"}},
	{"year", "smallint", []string{"2155", "1901", "0"}, []string{"2155", "1901", "0"}},
	{"date", "date", []string{"'2024-02-29'", "'9999-12-31'", "'1000-01-01'", "'0000-01-01'"}, []string{"2024-02-29", "9999-12-31", "1000-01-01", "0001-01-01 BC"}},
	{"datetime", "timestamp without time zone", []string{"'2024-03-10 02:30:00'", "'9999-12-31 23:59:59'", "'1000-01-01 00:00:00'"}, []string{"2024-03-10 02:30:00", "9999-12-31 23:59:59", "1000-01-01 00:00:00"}},
	{"datetime(6)", "timestamp without time zone", []string{"'2024-01-01 00:00:00.123456'", "'2024-01-01 00:00:00.100000'"}, []string{"2024-01-01 00:00:00.123456", "2024-01-01 00:00:00.1"}},
	{"datetime(3)", "timestamp without time zone", []string{"'2024-01-01 00:00:00.12'"}, []string{"2024-01-01 00:00:00.12"}},
	{"datetime(1)", "timestamp without time zone", []string{"'2024-01-01 00:00:00.5'"}, []string{"2024-01-01 00:00:00.5"}},
	{"timestamp NULL", "timestamp with time zone", []string{"'2024-03-10 02:30:00'", "'2038-01-19 03:14:07'", "'1970-01-01 00:00:01'"}, []string{"2024-03-10 02:30:00+00", "2038-01-19 03:14:07+00", "1970-01-01 00:00:01+00"}},
	{"timestamp(6) NULL", "timestamp with time zone", []string{"'2024-02-29 23:59:59.999999'", "'2000-03-01 00:00:00.000001'"}, []string{"2024-02-29 23:59:59.999999+00", "2000-03-01 00:00:00.000001+00"}},
	{"timestamp(4) NULL", "timestamp with time zone", []string{"'2024-02-29 23:59:59.1234'"}, []string{"2024-02-29 23:59:59.1234+00"}},
	{"time", "interval", []string{"'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:01'", "'24:00:00'"}, []string{"838:59:59", "-838:59:59", "00:00:00", "-00:00:01", "24:00:00"}},
	{"time(6)", "interval", []string{"'-00:00:00.000001'", "'100:00:00.5'", "'-01:02:03.999999'"}, []string{"-00:00:00.000001", "100:00:00.5", "-01:02:03.999999"}},
	{"time(2)", "interval", []string{"'-00:00:00.01'", "'-12:34:56.78'", "'12:34:56.7'"}, []string{"-00:00:00.01", "-12:34:56.78", "12:34:56.7"}},
	{"time(4)", "interval", []string{"'-00:00:01.0001'", "'00:00:00.9999'"}, []string{"-00:00:01.0001", "00:00:00.9999"}},
	{"char(5)", "character varying(5)", []string{"'ab'", "''", "'ab  '", "'äöü€x'"}, []string{"ab", "", "ab", "äöü€x"}},
	{"char(200)", "character varying(200)", []string{"'x'", "repeat('ü', 200)"}, []string{"x", strings.Repeat("ü", 200)}},
	{"varchar(10)", "character varying(10)", []string{"'a b '", "'tab\\tnl\\nbs\\\\'", "'😀'"}, []string{"a b ", "tab\tnl\nbs\\", "😀"}},
	{"varchar(300)", "character varying(300)", []string{"repeat('x', 300)", "''"}, []string{strings.Repeat("x", 300), ""}},
	{"varchar(20) character set latin1", "character varying(20)", []string{"'é€ß'", "'plain'"}, []string{"é€ß", "plain"}},
	{"char(4) character set latin1", "character varying(4)", []string{"'é '"}, []string{"é"}},
	{"varchar(20) character set utf16", "character varying(20)", []string{"'a€😀'"}, []string{"a€😀"}},
	{"char(6) character set ucs2", "character varying(6)", []string{"'ab€'"}, []string{"ab€"}},
	{"varchar(20) character set utf32", "character varying(20)", []string{"'x😀'"}, []string{"x😀"}},
	{"varchar(20) character set gbk", "character varying(20)", []string{"'中文a'"}, []string{"中文a"}},
	{"varchar(20) character set sjis", "character varying(20)", []string{"'日本'"}, []string{"日本"}},
	{"text character set cp1251", "text", []string{"'привет'"}, []string{"привет"}},
	{"varchar(20) collate utf8mb4_bin", "character varying(20)", []string{"'Ä'"}, []string{"Ä"}},
	{"text", "text", []string{"'long'", "repeat('y', 70000 % 60000)"}, []string{"long", strings.Repeat("y", 10000)}},
	{"tinytext", "text", []string{"'t'"}, []string{"t"}},
	{"longtext", "text", []string{"repeat('z', 100000)"}, []string{strings.Repeat("z", 100000)}},
	{"binary(4)", "bytea", []string{"0x01", "0x00", "0xff00ff00"}, []string{`\x01000000`, `\x00000000`, `\xff00ff00`}},
	{"varbinary(300)", "bytea", []string{"0x0100", "''"}, []string{`\x0100`, `\x`}},
	{"blob", "bytea", []string{"0x00ff5c0a09", "''"}, []string{`\x00ff5c0a09`, `\x`}},
	{"mediumblob", "bytea", []string{"repeat(0x07, 70000)"}, []string{`\x` + strings.Repeat("07", 70000)}},
	{"enum('b','a')", "text", []string{"'a'", "'b'"}, []string{"a", "b"}},
	{"enum('x,y','it''s','ü')", "text", []string{"'x,y'", "'it''s'", "'ü'"}, []string{"x,y", "it's", "ü"}},
	{"enum('é','€') character set latin1", "text", []string{"'€'"}, []string{"€"}},
	{"set('x','y','z')", "text", []string{"'z,x'", "''", "'y'"}, []string{"x,z", "", "y"}},
	{"point", "bytea", []string{"ST_GeomFromText('POINT(1 2)')"}, []string{`\x0101000000000000000000f03f0000000000000040`}},
	{"geometry", "bytea", []string{"ST_GeomFromText('LINESTRING(0 0,1 1)')", "ST_GeomFromText('POINT(1 2)', 4326)"}, []string{"", ""}},
}

var mariaValues = []valueCase{
	{"uuid", "uuid", []string{"'00112233-4455-1677-8899-aabbccddeeff'", "'00112233-4455-7677-8899-aabbccddeeff'", "'00112233-4455-0677-0099-aabbccddee00'", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'00112233-4455-4677-c899-aabbccddeeff'"},
		[]string{"00112233-4455-1677-8899-aabbccddeeff", "00112233-4455-7677-8899-aabbccddeeff", "00112233-4455-0677-0099-aabbccddee00", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "00112233-4455-4677-c899-aabbccddeeff"}},
	{"inet6", "text", []string{"'::1'", "'::ffff:1.2.3.4'", "'2001:db8::ff00:42:8329'", "'::'", "'1:2:3:4:5:6:7:8'", "'::1.2.3.4'", "'1:0:0:2::'"}, nil},
	{"inet4", "text", []string{"'1.2.3.4'", "'0.0.0.0'", "'255.255.255.0'"}, []string{"1.2.3.4", "0.0.0.0", "255.255.255.0"}},
	{"json", "text", []string{`'{"a": [1,  2]}'`}, []string{`{"a": [1,  2]}`}},
}

var mysqlValues = []valueCase{
	{"json", "json", []string{
		`'{"b": 1, "a": {"x": [1, 2.5, "q\\"\\n\\u0001", null, true, false]}, "a": 2}'`,
		`'[]'`, `'"just text"'`, `'12345678901234567890'`, `'-1e400'`[0:0] + `'1e20'`, `'-0.0'`, `'1e-7'`, `'123456789012345.6'`, `'1e15'`, `'0.1'`, `'65536'`, `'-70000'`, `'{}'`, `'null'`, `'40000'`,
		`JSON_OBJECT('d', CAST(1.50 AS DECIMAL(10,2)), 'date', CAST('2024-01-02' AS DATE), 'dt', CAST('2024-01-02 03:04:05.6' AS DATETIME(6)), 't', CAST('-10:11:12.5' AS TIME(6)), 'bin', CAST('abc' AS BINARY), 'u', CAST(18446744073709551615 AS UNSIGNED))`,
		`(SELECT JSON_ARRAYAGG(repeat('k', 1000)) FROM (WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT i FROM n) x)`,
	}, nil},
	{"vector(3)", "bytea", []string{"STRING_TO_VECTOR('[1,2,3]')"}, []string{`\x0000803f0000004000004040`}},
}

// A row must have the same text whether it is copied or comes from the log, under full
// and under minimal images, in transactions that are compressed and not.
func TestValuesAreTheSameFromCopyAndStream(t *testing.T) {
	onAll(t, func(r *rig) {
		cases := append([]valueCase(nil), commonValues...)
		maria := r.server.Binaries.MariaDB
		if maria {
			cases = append(cases, mariaValues...)
		} else {
			cases = append(cases, mysqlValues...)
		}
		for i, c := range cases {
			table := fmt.Sprintf("v%d", i)
			r.exec(fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, v %s)", table, c.typ))
			from := r.head()
			compress := "SET SESSION binlog_transaction_compression = ON"
			if maria {
				compress = "SET @ignored = 1"
			}
			statements := []string{"SET sql_mode = 'NO_ENGINE_SUBSTITUTION'", "SET time_zone = '+00:00'"}
			if i%2 == 1 {
				statements = append(statements, compress)
			}
			for n, v := range c.values {
				statements = append(statements, fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", table, n, v))
			}
			statements = append(statements, fmt.Sprintf("INSERT INTO %s VALUES (1000, NULL)", table))
			r.exec(statements...)
			rel := r.relation(table)
			if rel.Problem != "" {
				t.Errorf("%s: %s", c.typ, rel.Problem)
				continue
			}
			if got := rel.Table.Columns[1].Type; got.Name != c.pg {
				t.Errorf("%s becomes %s, want %s", c.typ, got.Name, c.pg)
			}
			streamed := map[string]bool{}
			h := r.stream(from)
			for _, e := range h.events {
				streamed[e.new] = true
			}
			for _, tx := range h.txs {
				for _, ch := range tx.Changes {
					if ch.Table != rel.Table {
						t.Errorf("%s: the layouts of catalogue and log differ: %+v, %+v", c.typ, rel.Table.Columns, ch.Table.Columns)
					}
				}
			}
			copied := r.copyTable(table)
			for _, row := range copied {
				if !streamed[row] {
					t.Errorf("%s: copied %.200s, streamed %.600v", c.typ, row, streamed)
				}
			}
			for n, want := range c.want {
				if row := fmt.Sprintf("[%d] [%s]", n, want); want != "" && !streamed[row] {
					t.Errorf("%s: %s did not come out as %.200s: %.600v", c.typ, c.values[n], want, streamed)
				}
			}
		}
	})
}

// The log says of all numeric columns together which are unsigned: one that is counted
// wrongly shifts those behind it.
func TestUnsignedColumnsAreFoundAmongOthers(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec(`CREATE TABLE wide (id int PRIMARY KEY, a smallint unsigned, v varchar(9), y year, b smallint unsigned, c smallint, d decimal(4,1), bits bit(3), e bigint unsigned,
			f float, g tinyint unsigned, w year, h tinyint, at date, i mediumint unsigned, en enum('x'), j mediumint, k double unsigned, l int unsigned, js json, m int, n bigint)`)
		from := r.head()
		r.exec("INSERT INTO wide VALUES (1, 65535, 'v', 2024, 65535, -32768, -9.5, b'101', 18446744073709551615, 1.5, 255, 1999, -128, '2024-02-29', 16777215, 'x', -8388608, 2.5, 4294967295, '{}', -2147483648, -9223372036854775808)")
		want := "[1] [65535] [v] [2024] [65535] [-32768] [-9.5] [101] [18446744073709551615] [1.5] [255] [1999] [-128] [2024-02-29] [16777215] [x] [-8388608] [2.5] [4294967295] [{}] [-2147483648] [-9223372036854775808]"
		h, rel := r.stream(from), r.relation("wide")
		if got := h.events[0].new; got != want {
			t.Errorf("streamed %s", got)
		}
		if got := r.copyTable("wide")[0]; got != want {
			t.Errorf("copied %s", got)
		}
		for _, tx := range h.txs {
			for _, ch := range tx.Changes {
				if ch.Table != rel.Table {
					t.Errorf("the layouts of catalogue and log differ: %+v, %+v", rel.Table.Columns, ch.Table.Columns)
				}
			}
		}
	})
}

func TestZeroDatesFollowThePolicyInBothPhases(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("SET sql_mode = ''", "CREATE TABLE z (id int PRIMARY KEY, d date NOT NULL, t datetime(6), s timestamp NULL)")
		from := r.head()
		r.exec("SET sql_mode = ''", "INSERT INTO z VALUES (1, '0000-00-00', '2024-00-00 00:00:00', 0), (2, '2024-02-00', '2024-01-01 00:00:00.123456', '2024-01-01')")
		for policy, want := range map[string][]string{
			ZeroDatesNull: {"[1] NULL NULL NULL", "[2] NULL [2024-01-01 00:00:00.123456] [2024-01-01 00:00:00+00]"},
			ZeroDatesText: {"[1] [0000-00-00] [2024-00-00 00:00:00] [0000-00-00 00:00:00]", "[2] [2024-02-00] [2024-01-01 00:00:00.123456] [2024-01-01 00:00:00]"},
		} {
			cfg := r.source.cfg
			cfg.ZeroDates = policy
			r.source = r.open(cfg)
			copied := r.copyTable("z")
			h := r.stream(from)
			for i, row := range want {
				if copied[i] != row {
					t.Errorf("%s: copied %s, want %s", policy, copied[i], row)
				}
				if h.events[i].new != row {
					t.Errorf("%s: streamed %s, want %s", policy, h.events[i].new, row)
				}
			}
			c := r.relation("z").Table.Columns[1]
			if policy == ZeroDatesNull && !c.Nullable || policy == ZeroDatesText && c.Type.Kind != change.Text {
				t.Errorf("%s: column d is %+v", policy, c)
			}
		}
	})
}
