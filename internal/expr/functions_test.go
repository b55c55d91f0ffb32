package expr

import (
	"os"
	"regexp"
	"testing"
)

// The page of the language names every function and alias.
func TestThePageNamesEveryFunction(t *testing.T) {
	page, err := os.ReadFile("../../docs/expressions.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z_0-9]+`).FindAllString(string(page), -1) {
		named[word] = true
	}
	for name := range functions {
		if name != "dayofmonth" && !named[name] {
			t.Errorf("%s is not on the page", name)
		}
	}
	for alias, name := range aliases {
		if _, ok := functions[name]; !ok {
			t.Errorf("%s stands for %s, which is no function", alias, name)
		}
	}
}

func TestTextFunctions(t *testing.T) {
	check(t, [][2]string{
		{"upper(name)", "GRÜßE text"}, {"lower(operation)", "delete text"}, {"ucase('a')", "A text"}, {"lcase('Ü')", "ü text"}, {"upper(nil)", "NULL"}, {"upper(id)", "7 text"},
		{"trim('  a b ')", "a b text"}, {"ltrim('  a ')", "a  text"}, {"rtrim('  a ')", "  a text"}, {"btrim('xxaxx', 'x')", "a text"}, {"btrim(' a ')", "a text"}, {"trim(BOTH 'xy' FROM 'yxaxy')", "a text"}, {"trim(LEADING FROM '  a ')", "a  text"}, {"trim(TRAILING 'ü' FROM 'aüü')", "a text"}, {"trim('x' FROM 'xax')", "a text"}, {"trim(BOTH '' FROM ' a ')", " a  text"},
		{"length(name)", "5 integer"}, {"char_length(name)", "5 integer"}, {"length(bin)", "4 integer"}, {"length('')", "0 integer"}, {"length(nil)", "NULL"},
		{"substring(name, 2, 2)", "rü text"}, {"substr(name, 3)", "üße text"}, {"substring(name FROM 2 FOR 1)", "r text"}, {"substring(name, 0, 2)", "Gr text"}, {"substring(name, -2)", "ße text"}, {"substring(name, -9, 6)", "Gr text"}, {"substring(name, 9)", " text"}, {"substring(name, 2, -1)", " text"}, {"substring(name, 1, niln)", "NULL"}, {"substring(name, -9223372036854775808, 9223372036854775807)", "Grüße text"},
		{"left(name, 3)", "Grü text"}, {"left(name, -1)", " text"}, {"right(name, 3)", "üße text"}, {"right(name, 99)", "Grüße text"}, {"right(name, 0)", " text"},
		{"concat(name, '-', id)", "Grüße-7 text"}, {"concat('a', NULL)", "NULL"}, {"concat_ws('-', 'a', NULL, 'b', nil, 1)", "a-b-1 text"}, {"concat_ws(nil, 'a')", "NULL"}, {"concat_ws(',')", " text"}, {"concat('1','2','3','4','5','6','7','8','9','0')", "1234567890 text"},
		{"replace(operation, 'E', 'e')", "DeLeTe text"}, {"replace(operation, 'E')", "DLT text"}, {"replace(operation, '', 'x')", "DELETE text"}, {"replace(nil, 'a', 'b')", "NULL"},
		{"split_part('a,b,c', ',', 2)", "b text"}, {"split_part('a,b,c', ',', -1)", "c text"}, {"split_part('a,b,c', ',', 4)", " text"}, {"split_part('abc', '', 1)", "abc text"}, {"split_part('abc', ',', 1)", "abc text"}, {"split_part('a', ',', 0)", "~parts count from 1"},
		{"lpad('7', 3, '0')", "007 text"}, {"lpad('abcd', 3, 'x')", "abc text"}, {"rpad('ü', 4, 'ab')", "üaba text"}, {"lpad('a', 3)", "  a text"}, {"rpad('a', 3, '')", "a text"}, {"lpad('a', -1, 'x')", " text"}, {"lpad('a', 2000000000, 'x')", "~the resulting text is too long"},
		{"reverse(name)", "eßürG text"}, {"position('ü' IN name)", "3 integer"}, {"locate('x', name)", "0 integer"}, {"instr(name, 'ß')", "4 integer"}, {"locate('e', 'eee', 2)", "2 integer"}, {"locate('e', 'eee', 0)", "0 integer"}, {"position('' IN 'a')", "1 integer"},
		{"starts_with(operation, 'DEL')", isTrue}, {"startswith(operation, 'x')", isFalse}, {"ends_with(operation, 'TE')", isTrue}, {"endswith(operation, NULL)", "NULL"}, {"contains(name, 'üß')", isTrue},
		{"regexp_like(name, '^G')", isTrue}, {"regexp_replace(operation, '[EL]', '_')", "D___T_ text"}, {"regexp_replace('ab12', '([a-z]+)([0-9]+)', '$2$1x')", "12abx text"}, {`regexp_replace('a', 'a', '\$1')`, "$1 text"}, {"regexp_replace('a', 'a', '$1')", "~names a group that the pattern does not have"},
		{"regexp_extract('id=42', '([a-z]+)=([0-9]+)', 2)", "42 text"}, {"regexp_extract('id=42', '([0-9]+)')", "42 text"}, {"regexp_extract('x', '([0-9]+)')", " text"}, {"regexp_extract('x', 'x', 0)", "x text"}, {"regexp_extract('x', 'x')", "~name group 0"}, {"regexp_extract('x', 'x', 1)", "~must be a literal from 0 to 0"},
		{"md5('abc')", "900150983cd24fb0d6963f7d28e17f72 text"}, {"sha1('abc')", "a9993e364706816aba3e25717850c26c9cd0d89d text"}, {"sha2('abc', 256)", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad text"}, {"sha2('abc', 0) = sha2('abc', 256)", isTrue}, {"length(sha2('abc', 512))", "128 integer"}, {"sha2('abc', 1)", "~224, 256, 384, 512"},
		{"hex(255)", "FF text"}, {"hex(-1)", "FFFFFFFFFFFFFFFF text"}, {"hex('abc')", "616263 text"}, {"hex(bin)", "DEADBEEF text"}, {"md5(bin)", "2f249230a8e7c2bf6005ccd2679259ec text"},
		{"upper(bin)", "~this is bytea"}, {"left(name, 1.5)", "~left expects an integer here, this is numeric"},
	})
}

func TestNumberFunctions(t *testing.T) {
	check(t, [][2]string{
		{"abs(small)", "3 smallint"}, {"abs(-2.50)", "2.50 numeric"}, {"abs(-0.5D)", "0.5 double precision"}, {"abs(-9223372036854775808)", "~out of the integer's range"}, {"abs(-32768S)", "~out of the integer's range"}, {"abs(nil)", "NULL"}, {"abs(digits)", "12.50 numeric"}, {"abs(d)", "~abs expects a number, this is date"},
		{"ceil(1.2)", "2 numeric"}, {"ceiling(-1.2)", "-1 numeric"}, {"floor(-1.2)", "-2 numeric"}, {"floor(1.9D)", "1 double precision"}, {"ceil(n)", "42 integer"}, {"floor(decimal('NaN'))", "NaN numeric"}, {"ceil(0.0)", "0 numeric"},
		{"round(2.5)", "3 numeric"}, {"round(-2.5)", "-3 numeric"}, {"round(2.345, 2)", "2.35 numeric"}, {"round(1.5, 3)", "1.500 numeric"}, {"round(1250, -2)", "1300 integer"}, {"round(1250.5, -2)", "1300 numeric"}, {"round(2.5D)", "3 double precision"}, {"round(1.005D, 2)", "1.01 double precision"}, {"round(n)", "42 integer"}, {"round(2147483647, -1)", "~out of the integer's range"}, {"round(5, -1)", "10 integer"}, {"round(4, -1)", "0 integer"}, {"round(4, -300)", "0 integer"}, {"round(1.5, n)", "~must be a literal from"},
		{"pow(2, 10)", "1024 double precision"}, {"power(2, 0.5)", "1.4142135623730951 double precision"}, {"pow(-1, 0.5)", "~the power is not defined"}, {"pow(0, -1)", "~the power is not defined"}, {"pow(10, 400)", "~out of the float's range"}, {"sqrt(9)", "3 double precision"}, {"sqrt(-1)", "~the square root of a negative number"},
		{"sign(-5)", "-1 integer"}, {"sign(0.0)", "0 numeric"}, {"signum(2.5D)", "1 double precision"}, {"mod(7, 0)", "~evaluate % at line 1, column 1"}, {"mod(-7.5, 2)", "-1.5 numeric"},
	})
}

func TestTimeFunctions(t *testing.T) {
	check(t, [][2]string{
		{"to_date('2024-02-29')", "2024-02-29 date"}, {"to_date('02-29-2024', 'MM-dd-yyyy')", "2024-02-29 date"}, {"to_date(at)", "2024-02-29 date"}, {"to_date('x')", "~date: the text is no date"}, {"to_date(name)", "~evaluate to_date at line 1, column 1"}, {"try_to_date('x')", "NULL"}, {"to_date(nil)", "NULL"}, {"to_date(NULL, 'yyyy')", "NULL"}, {"to_date('31.12.99', 'dd.MM.yy')", "2099-12-31 date"},
		{"to_timestamp('02-29-2024 13:14:15', 'MM-dd-yyyy HH:mm:ss')", "2024-02-29 13:14:15+00 timestamp with time zone"}, {"to_timestamp('2024-02-29T13:14:15.123Z', \"yyyy-MM-dd'T'HH:mm:ss.SSSX\")", "2024-02-29 13:14:15.123+00 timestamp with time zone"}, {"to_timestamp('2024-02-29 01:14:15 pm', 'yyyy-MM-dd hh:mm:ss a')", "2024-02-29 13:14:15+00 timestamp with time zone"}, {"to_timestamp('2024-02-29 12:00:00 AM', 'yyyy-MM-dd hh:mm:ss a')", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"to_timestamp('20240229131415', 'yyyyMMddHHmmss')", "2024-02-29 13:14:15+00 timestamp with time zone"}, {"to_timestamp('29 feb 2024 +0130', 'dd MMM yyyy Z')", "2024-02-28 22:30:00+00 timestamp with time zone"}, {"to_timestamp('9/5/2024', 'M/d/yyyy')", "2024-09-05 00:00:00+00 timestamp with time zone"}, {"to_timestamp('2024-060', 'yyyy-DDD')", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"to_timestamp('Thursday 29 February 2024', 'EEEE dd MMMM yyyy')", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"to_timestamp('12', 'HH')", "1970-01-01 12:00:00+00 timestamp with time zone"},
		{"to_timestamp('9-5-2024', 'MM-dd-yyyy')", "~does not match the pattern"}, {"try_to_timestamp('2024-02-30', 'yyyy-MM-dd')", "NULL"}, {"to_timestamp('2024-02-29x', 'yyyy-MM-dd')", "~does not match the pattern"}, {"to_timestamp('25', 'HH')", "~does not match the pattern"}, {"to_timestamp(name, nil)", "~the format must be a string literal"}, {"to_timestamp('x', '[yyyy]')", "~optional parts"}, {"to_timestamp('x', 'yyyy-QQ')", "~the format's letter Q is not known"}, {"to_timestamp(1.5)", "1970-01-01 00:00:01.5+00 timestamp with time zone"}, {"to_timestamp(d)", "2024-02-29 00:00:00+00 timestamp with time zone"},
		{"date_trunc('MONTH', at)", "2024-02-01 00:00:00+00 timestamp with time zone"}, {"date_trunc('week', d)", "2024-02-26 00:00:00+00 timestamp with time zone"}, {"date_trunc('hour', ts)", "2024-02-29 13:00:00 timestamp without time zone"}, {"date_trunc('quarter', DATE '2024-12-31')", "2024-10-01 00:00:00+00 timestamp with time zone"}, {"date_trunc('day', '2024-02-29 13:00:00')", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"date_trunc('millisecond', ts)", "2024-02-29 13:14:15.123 timestamp without time zone"}, {"date_trunc('second', TIMESTAMP '1969-12-31 23:59:59.5')", "1969-12-31 23:59:59+00 timestamp with time zone"}, {"date_trunc('year', endless)", "infinity timestamp with time zone"}, {"date_trunc('eon', at)", "~unknown unit"}, {"date_trunc('week', DATE '2024-03-03')", "2024-02-26 00:00:00+00 timestamp with time zone"},
		{"date_add(d, 1)", "2024-03-01 date"}, {"date_sub('2024-03-01', 1)", "2024-02-29 date"}, {"date_add(at, n)", "2024-04-11 date"}, {"date_add(d, 9223372036854775807)", "~the time is out of range"}, {"datediff(d, '2024-01-01')", "59 integer"}, {"datediff(at, d)", "0 integer"}, {"datediff(endless, d)", "~the time is infinite"},
		{"year(d)", "2024 integer"}, {"month(at)", "2 integer"}, {"day(d)", "29 integer"}, {"hour(ts)", "13 integer"}, {"minute(at)", "14 integer"}, {"second(ts)", "15 integer"}, {"extract(SECOND FROM ts)", "15.123456 numeric"}, {"extract(year FROM old)", "-44 integer"}, {"quarter(d)", "1 integer"}, {"weekofyear(DATE '2024-12-30')", "1 integer"}, {"dayofweek(DATE '2024-03-03')", "1 integer"}, {"extract(DAYOFWEEK_ISO FROM DATE '2024-03-03')", "7 integer"}, {"dayofyear(d)", "60 integer"}, {"year('2024-05-05')", "2024 integer"}, {"hour(endless)", "~the time is infinite"}, {"extract(eon FROM d)", "~unknown field EON"}, {"year(nil)", "NULL"},
		{"unix_timestamp(at)", "1709212455 bigint"}, {"unix_timestamp('1970-01-02', 'yyyy-MM-dd')", "86400 bigint"}, {"to_unix_timestamp('1970-01-01 00:00:01')", "1 bigint"}, {"from_unixtime(0)", "1970-01-01 00:00:00 text"}, {"from_unixtime(86400, 'dd.MM.yyyy')", "02.01.1970 text"}, {"timestamp_seconds(1.5)", "1970-01-01 00:00:01.5+00 timestamp with time zone"}, {"timestamp_millis(-1)", "1969-12-31 23:59:59.999+00 timestamp with time zone"}, {"timestamp_micros(1709212455500000)", "2024-02-29 13:14:15.5+00 timestamp with time zone"}, {"unix_millis(at)", "1709212455500 bigint"}, {"unix_micros(at)", "1709212455500000 bigint"}, {"unix_seconds(at)", "1709212455 bigint"}, {"timestamp_millis(9223372036854775807)", "~the time is out of range"}, {"timestamp_millis(digits)", "1970-01-01 00:00:00.0125+00 timestamp with time zone"},
		{"date_format(at, 'yyyy-MM-dd HH:mm:ss.SSS')", "2024-02-29 13:14:15.500 text"}, {"date_format(d, \"EEE, d MMM yyyy h:mm a z\")", "Thu, 29 Feb 2024 12:00 AM UTC text"}, {"date_format(at, \"yyyyMMdd'T'HHmmssX\")", "20240229T131415Z text"}, {"date_format(at, 'EEEE MMMM D yy k K Z xxx')", "Thursday February 60 24 13 1 +0000 +00:00 text"}, {"date_format(at, \"''yy''\")", "'24' text"}, {"date_format(endless, 'yyyy')", "~the time is infinite"}, {"date_format(nil, 'yyyy')", "NULL"},
	})
}
