package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// myValued is a type of MariaDB and MySQL with literals and the texts that a destination
// shows for them.
type myValued struct {
	typ    string
	values []string
	want   []string
}

var myValuesOfTypes = []myValued{
	{"tinyint(1)", []string{"-1", "5", "0"}, []string{"-1", "5", "0"}},
	{"bool", []string{"true", "false"}, []string{"1", "0"}},
	{"tinyint unsigned", []string{"255"}, []string{"255"}},
	{"smallint unsigned", []string{"65535"}, []string{"65535"}},
	{"mediumint unsigned", []string{"16777215", "8388608"}, []string{"16777215", "8388608"}},
	{"integer unsigned", []string{"4294967295"}, []string{"4294967295"}},
	{"int(5) zerofill", []string{"42", "4294967295"}, []string{"42", "4294967295"}},
	{"bigint unsigned", []string{"18446744073709551615", "9223372036854775808"}, []string{"18446744073709551615", "9223372036854775808"}},
	{"bigint", []string{"-9223372036854775808"}, []string{"-9223372036854775808"}},
	{"float", []string{"16777217", "0.1", "3.4e38"}, []string{"1.6777216e+07", "0.1", "3.4e+38"}},
	{"double precision", []string{"0.1", "1.7976931348623157e308", "-2.2250738585072014e-308"}, []string{"0.1", "1.7976931348623157e+308", "-2.2250738585072014e-308"}},
	{"real", []string{"2.5"}, []string{"2.5"}},
	{"dec(65,30)", []string{"12345678901234567890123456789012345.123456789012345678901234567890", "-0.000000000000000000000000000001"}, []string{"12345678901234567890123456789012345.123456789012345678901234567890", "-0.000000000000000000000000000001"}},
	{"numeric(10,2)", []string{"-99999999.99"}, []string{"-99999999.99"}},
	{"bit(1)", []string{"b'1'", "b'0'"}, []string{"1", "0"}},
	{"bit(12)", []string{"b'000000001010'"}, []string{"000000001010"}},
	{"bit(64)", []string{"0xffffffffffffffff", "1"}, []string{strings.Repeat("1", 64), strings.Repeat("0", 63) + "1"}},
	{"year", []string{"'0000'", "2155", "1901"}, []string{"0", "2155", "1901"}},
	{"date", []string{"'9999-12-31'", "'1000-01-01'", "'2024-02-29'"}, []string{"9999-12-31", "1000-01-01", "2024-02-29"}},
	{"datetime(6)", []string{"'2024-03-10 02:30:00'", "'2024-01-01 00:00:00.123456'", "'9999-12-31 23:59:59.999999'"}, []string{"2024-03-10 02:30:00", "2024-01-01 00:00:00.123456", "9999-12-31 23:59:59.999999"}},
	// The session that writes is at +05:30.
	{"timestamp NULL", []string{"'2024-03-10 02:30:00'", "'2024-11-03 07:01:00'", "'2038-01-19 08:44:07'"}, []string{"2024-03-09 21:00:00+00", "2024-11-03 01:31:00+00", "2038-01-19 03:14:07+00"}},
	{"timestamp(6) NULL", []string{"'2024-02-29 23:59:59.999999'"}, []string{"2024-02-29 18:29:59.999999+00"}},
	{"time(6)", []string{"'838:59:59'", "'-838:59:59'", "'-00:00:00.000001'"}, []string{"838:59:59", "-838:59:59", "-00:00:00.000001"}},
	{"char(5)", []string{"'ab  '", "''", "'äöü€x'"}, []string{"ab", "", "äöü€x"}},
	{"nchar(5)", []string{"'é'"}, []string{"é"}},
	{"national varchar(9)", []string{"'a b '"}, []string{"a b "}},
	{"varchar(20)", []string{"'😀\\t\\n\\\\'", "''", "'NULL'"}, []string{"😀\t\n\\", "", "NULL"}},
	{"varchar(20) character set latin1", []string{"'é€ß'"}, []string{"é€ß"}},
	{"varchar(20) character set gbk", []string{"'中文a'"}, []string{"中文a"}},
	{"varchar(20) character set utf16", []string{"'a€😀'"}, []string{"a€😀"}},
	{"text character set cp1251", []string{"'привет'"}, []string{"привет"}},
	{"varchar(20) collate utf8mb4_bin", []string{"'Ä'"}, []string{"Ä"}},
	{"longtext", []string{"repeat('z', 70000)"}, []string{strings.Repeat("z", 70000)}},
	{"binary(4)", []string{"0x01", "0x00"}, []string{`\x01000000`, `\x00000000`}},
	{"varbinary(300)", []string{"0x0100", "''"}, []string{`\x0100`, `\x`}},
	{"blob", []string{"0x00ff5c0a09"}, []string{`\x00ff5c0a09`}},
	{"enum('b','a','x,y','it''s')", []string{"'a'", "'x,y'", "'it''s'", "'zzz'"}, []string{"a", "x,y", "it's", ""}}, // the last is none of them
	{"set('x','y','z')", []string{"'z,x'", "''"}, []string{"x,z", ""}},
	{"json", []string{`'{"a": [1, 2.5, "q"], "b": null}'`}, []string{`{"a": [1, 2.5, "q"], "b": null}`}},
	{"point", []string{"ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(1 2)', 4326)"}, []string{`\x0101000000000000000000f03f0000000000000040`, `\x0101000020e6100000000000000000f03f0000000000000040`}},
	{"geometry", []string{"ST_GeomFromText('GEOMETRYCOLLECTION EMPTY')", "ST_GeomFromText('LINESTRING(0 0,1 1)')"}, []string{`\x010700000000000000`, `\x01020000000200000000000000000000000000000000000000000000000000f03f000000000000f03f`}},
}

// What a value is in the destination depends neither on whether it was copied or came
// by the log, nor on the zones of the server, the session that wrote it, and the program.
func TestMySQLValuesOfEveryType(t *testing.T) {
	server := dbtest.MySQL(t, dbtest.Setting("default-time-zone", "+05:30"))
	create, most := "CREATE TABLE every (id int PRIMARY KEY, touched int NOT NULL DEFAULT 0", 0
	for i, v := range myValuesOfTypes {
		create += fmt.Sprintf(", c%d %s", i, v.typ)
		most = max(most, len(v.values))
	}
	create += ", hidden int INVISIBLE DEFAULT 9, made int AS (id + 1) STORED, virtual_one int AS (id + 2) VIRTUAL)"
	rows := func(first int) (statements []string) {
		for n := range most + 1 { // the last is all NULL
			names, cells := "id", fmt.Sprint(first+n)
			for i, v := range myValuesOfTypes {
				if n < len(v.values) {
					if !server.Binaries.MariaDB { // which takes the latitude for the first axis
						v.values[n] = strings.Replace(v.values[n], "4326)", "4326, 'axis-order=long-lat')", 1)
					}
					names, cells = names+fmt.Sprintf(", c%d", i), cells+", "+v.values[n]
				}
			}
			statements = append(statements, fmt.Sprintf("INSERT INTO every (%s) VALUES (%s)", names, cells))
		}
		return statements
	}
	session := slices.Clip([]string{"SET SESSION time_zone = '+05:30'", "SET SESSION sql_mode = ''"})
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newMyRigOn(t, server, kind, "flows: [{source: DB.every}, {source: DB.moments}, {source: DB.every, target: every_history, stored_as_scd_type: 2}]",
			append(append(session, create), append(rows(1), "CREATE TABLE moments (at timestamp(3) PRIMARY KEY, same datetime(3))", "INSERT INTO moments VALUES ('2024-03-10 07:30:00.5', '2024-03-10 07:30:00.5')")...)...)
		r.env = []string{"TZ=America/St_Johns"}
		r.once(t)
		r.exec(t, append(session, append(rows(101), "UPDATE every SET touched = 1 WHERE id < 100", "INSERT INTO moments VALUES ('2024-11-03 06:31:00.5', '2024-11-03 01:31:00.5')", "UPDATE moments SET same = '2024-11-03 01:31:00.25'")...)...)
		r.once(t)
		r.same(t)
		_, moments := r.shown(t, "moments")
		if got := fmt.Sprint(moments); got != "[[2024-03-10 02:00:00.5+00 2024-11-03 01:31:00.25] [2024-11-03 01:01:00.5+00 2024-11-03 01:31:00.25]]" {
			t.Errorf("moments: %s", got)
		}
		header, got := r.shown(t, "every")
		if len(got) != 2*(most+1) {
			t.Fatalf("%d rows", len(got))
		}
		for _, row := range got {
			n := 0
			fmt.Sscan(row[0], &n)
			for i, v := range myValuesOfTypes {
				want := null
				if n%100-1 < len(v.values) {
					want = v.want[n%100-1]
				}
				if g := row[2+i]; g != want {
					t.Errorf("%s (%s), id %d: %.200q, want %.200q", v.typ, header[2+i], n, g, want)
				}
			}
			if tail := strings.Join(row[2+len(myValuesOfTypes):], " "); tail != fmt.Sprintf("9 %d %d", n+1, n+2) {
				t.Errorf("invisible and generated columns of id %d: %s", n, tail)
			}
		}
	})
}
