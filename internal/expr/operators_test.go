package expr

import (
	"testing"
)

func TestComparisonByType(t *testing.T) {
	check(t, [][2]string{
		// Numbers, exactly.
		{"id = 7", isTrue}, {"id <> 7", isFalse}, {"7 >= id", isTrue}, {"8 < id", isFalse}, {"id = 7.00", isTrue},
		{"id = '7'", isTrue}, {"price = 12.5", isTrue}, {"price = '12.5'", isTrue}, {"price < 12.500000000000000000000000000001", isTrue},
		{"9007199254740993 = 9007199254740992", isFalse}, {"9007199254740993 > 9007199254740992.5", isTrue},
		{"huge > 12345678901234567890", isTrue}, {"huge = 12345678901234567890.000000000000000001000", isTrue},
		{"9007199254740993 = CAST(9007199254740992 AS double)", isFalse},
		{"9007199254740993 > CAST(9007199254740992 AS double)", isTrue},
		{"-1.5D < -1", isTrue}, {"-1.5D < -2", isFalse}, {"-1.5D > -2", isTrue},
		{"f = 0.1", isTrue}, {"r = 0.1", isTrue}, {"f = '0.1'", isTrue}, {"f = r", isFalse},
		{"f = CAST(digits AS numeric) / 125", isFalse}, // 0.1 is not exactly the double nearest to it
		{"double('NaN') = double('NaN')", isTrue}, {"double('NaN') > double('Infinity')", isTrue},
		{"decimal('NaN') > decimal('Infinity')", isTrue}, {"decimal('-Infinity') < -1e300", isTrue},
		{"double('-0') = 0", isTrue},
		{"f < id", isTrue}, {"id > f", isTrue}, {"price > f", isTrue}, {"f <> price", isTrue}, {"f = huge", isFalse}, {"f + 9e18D < 9223372036854775807", isTrue},
		{"double('Infinity') > huge", isTrue}, {"double('-Infinity') < id", isTrue}, {"double('NaN') > decimal('Infinity')", isTrue}, {"double('NaN') = decimal('NaN')", isTrue}, {"double('Infinity') = decimal('Infinity')", isTrue},
		{"1e30D > 9223372036854775807L", isTrue}, {"-1e30D < -9223372036854775808", isTrue}, {"0.5D * 5 = n / 16.8", isTrue},
		{"decimal(double('Infinity'))", "Infinity numeric"}, {"decimal(-0.0D)", "0 numeric"}, {"double(decimal('NaN'))", "NaN double precision"},
		// Texts beside numbers are cast for each row.
		{"digits = 12.5", isTrue}, {"digits > 12", isTrue}, {"name > 12", "~the text is no number"},
		{"digits = f", isFalse},
		// Texts, by their bytes.
		{"name = 'Grüße'", isTrue}, {"'a' < 'B'", isFalse}, {"'' < 'a'", isTrue}, {"name > operation", isTrue},
		{"operation >= 'DELETE'", isTrue}, {"operation < 'DELETE '", isTrue},
		{"fixed = 'DELETE'", isTrue}, {"fixed = operation", isTrue}, {"length(fixed)", "6 integer"}, {"fixed IN ('DELETE')", isTrue},
		{"mood = 'happy'", isTrue}, {"mood IN ('sad', 'happy')", isTrue}, {"string(mood) < 'sad'", isTrue},
		// Times.
		{"d = '2024-02-29'", isTrue}, {"d = DATE '2024-2-29'", isTrue}, {"d < at", isTrue}, {"at > d", isTrue}, {"ts < at", isTrue},
		{"at = '2024-02-29T13:14:15.5Z'", isTrue}, {"at = '2024-02-29 14:14:15.5+01:00'", isTrue}, {"at = TIMESTAMP '2024-02-29 13:14:15.5 UTC'", isTrue},
		{"endless > at", isTrue}, {"endless = 'infinity'", isTrue}, {"at > '-infinity'", isTrue},
		{"old < d", isTrue}, {"old = '0044-03-15 BC'", isTrue}, {"old > DATE '4000-01-01 BC'", isTrue},
		{"clock < '09:00'", isTrue}, {"clock = '08:30:00.000'", isTrue},
		{"span = INTERVAL '32 days 3 hours'", isTrue}, {"span > INTERVAL 1 month", isTrue}, {"span = '1 month 2 days 3 hours'", isTrue},
		// Others.
		{"ok = TRUE", isTrue}, {"ok > FALSE", isTrue}, {"ok = 'yes'", isTrue},
		{"u = 'A0EEBC999C0B4EF8BB6D6BB9BD380A11'", isTrue}, {"bin = X'DEADBEEF'", isTrue}, {"bin < X'FF'", isTrue},
		{"string(addr) = '10.0.0.1'", isTrue},
		// NULL.
		{"nil = 'x'", "NULL"}, {"NULL = NULL", "NULL"}, {"niln < 1", "NULL"}, {"id = NULL", "NULL"},
		{"nil <=> NULL", isTrue}, {"NULL <=> NULL", isTrue}, {"id <=> NULL", isFalse}, {"id <=> 7", isTrue},
		{"nil IS DISTINCT FROM NULL", isFalse}, {"id IS DISTINCT FROM NULL", isTrue}, {"id IS NOT DISTINCT FROM 7", isTrue}, {"id IS DISTINCT FROM 8", isTrue},
	})
}

func TestInAndBetween(t *testing.T) {
	check(t, [][2]string{
		{"id IN (1, 7)", isTrue}, {"id IN (1, 2)", isFalse}, {"id IN (1, NULL)", "NULL"}, {"id IN (7, NULL)", isTrue},
		{"id NOT IN (1, 2)", isTrue}, {"id NOT IN (1, NULL)", "NULL"}, {"id NOT IN (7, NULL)", isFalse}, {"niln IN (1, NULL)", "NULL"}, {"niln NOT IN (1)", "NULL"},
		{"operation IN (name, 'DELETE')", isTrue}, {"operation IN ('A', NULL)", "NULL"}, {"nil IN ('A')", "NULL"},
		{"id IN ('7', 1.5)", isTrue}, {"price IN (1, 12.5)", isTrue}, {"d IN ('2024-02-29')", isTrue}, {"digits IN (12.5)", isTrue},
		{"operation IN ('a','b','c','d','e','f','g','h','i','DELETE')", isTrue}, {"operation IN ('a','b','c','d','e','f','g','h','i','j')", isFalse},
		{"id IN (1,2,3,4,5,6,8,9,10,7)", isTrue}, {"id IN (1,2,3,4,5,6,8,9,10,11,NULL)", "NULL"},
		{"NULL IN (1)", "NULL"},
		{"id BETWEEN 7 AND 7", isTrue}, {"id BETWEEN 8 AND 6", isFalse}, {"id NOT BETWEEN 1 AND 6", isTrue},
		{"id BETWEEN NULL AND 6", isFalse}, {"id BETWEEN NULL AND 8", "NULL"}, {"id BETWEEN 8 AND NULL", isFalse}, {"id NOT BETWEEN 8 AND NULL", isTrue},
		{"niln BETWEEN 1 AND 2", "NULL"}, {"d BETWEEN '2024-02-01' AND '2024-03-01'", isTrue}, {"operation BETWEEN 'A' AND 'E'", isTrue},
	})
}

func TestLike(t *testing.T) {
	check(t, [][2]string{
		{"operation LIKE 'DELETE'", isTrue}, {"operation LIKE 'DEL%'", isTrue}, {"operation LIKE '%TE'", isTrue}, {"operation LIKE '%LET%'", isTrue},
		{"operation LIKE 'DEL'", isFalse}, {"operation LIKE '%'", isTrue}, {"operation LIKE ''", isFalse}, {"'' LIKE ''", isTrue}, {"'' LIKE '%'", isTrue}, {"'' LIKE '_'", isFalse},
		{"operation LIKE '______'", isTrue}, {"operation LIKE '_____'", isFalse}, {"operation LIKE 'D%L%E'", isTrue}, {"operation LIKE 'D%X%E'", isFalse}, {"operation LIKE '%E%E%E'", isTrue},
		{"operation LIKE 'delete'", isFalse}, {"operation ILIKE 'delete'", isTrue}, {"operation ILIKE 'd_l%'", isTrue}, {"name ILIKE 'GRÜß_'", isTrue},
		{"name LIKE 'Gr__e'", isTrue}, {"name LIKE 'Gr___e'", isFalse},
		{`'a%b' LIKE 'a\%b'`, isTrue}, {`'axb' LIKE 'a\%b'`, isFalse}, {`'a\b' LIKE 'a\\b'`, isTrue}, {`'a_b' LIKE 'a!_b' ESCAPE '!'`, isTrue}, {`'axb' LIKE 'a!_b' ESCAPE '!'`, isFalse},
		{`'a\xb' LIKE 'a\%b' ESCAPE ''`, isTrue}, {"'ab' LIKE 'a%%b'", isTrue}, {"'ab' LIKE '%_%_%'", isTrue}, {"'a' LIKE '%_%_%'", isFalse},
		{"operation NOT LIKE 'D%'", isFalse}, {"nil LIKE '%'", "NULL"}, {"operation LIKE nil", "NULL"}, {"operation NOT LIKE NULL", "NULL"}, {"'a' LIKE 'a' ESCAPE NULL", "NULL"},
		{"operation LIKE concat(left(operation, 2), '%')", isTrue}, {"'aaab' LIKE '%a_b'", isTrue}, {"operation LIKE 'x' ESCAPE 'ab'", "~the escape is not one character"},
		{"operation RLIKE '^D.*E$'", isTrue}, {"operation REGEXP 'LET'", isTrue}, {"operation NOT RLIKE 'x'", isTrue}, {"nil RLIKE 'x'", "NULL"}, {"operation RLIKE NULL", "NULL"}, {`'a1' RLIKE '\d'`, isTrue},
		{"id LIKE '7%'", isTrue},
	})
}

func TestArithmetic(t *testing.T) {
	check(t, [][2]string{
		{"id + n", "49 bigint"}, {"small + 1", "-2 integer"}, {"small + small", "-6 smallint"}, {"n - 1", "41 integer"}, {"n * id", "294 bigint"},
		{"n / 8", "5.2500000000000000 numeric"}, {"7 / 2", "3.5000000000000000 numeric"}, {"1 / 3", "0.33333333333333333333 numeric"}, {"n DIV 8", "5 bigint"}, {"-7 DIV 2", "-3 bigint"},
		{"-7 % 3", "-1 integer"}, {"7 % -3", "1 integer"}, {"mod(n, 5)", "2 integer"}, {"5.5 % 2", "1.5 numeric"}, {"-n", "-42 integer"}, {"- small", "3 smallint"}, {"+n", "42 integer"},
		{"price + 1", "13.50 numeric"}, {"price * price", "156.2500 numeric"}, {"price - 12.5", "0.00 numeric"}, {"price / 3", "4.1666666666666667 numeric"}, {"-price", "-12.50 numeric"}, {"price DIV 5", "2 bigint"},
		{"huge + 1", "12345678901234567891.000000000000000001 numeric"}, {"huge * huge", "152415787532388367501905199875019052124.691357802469135780000000000000000001 numeric"},
		{"9223372036854775807 + 1", "~out of the integer's range"}, {"-9223372036854775808 - 1", "~out of the integer's range"}, {"9223372036854775807 * 2", "~out of the integer's range"},
		{"-9223372036854775808", "-9223372036854775808 bigint"}, {"-(-9223372036854775808)", "~out of the integer's range"}, {"-9223372036854775808 % -1", "0 bigint"}, {"-9223372036854775808 DIV -1", "~out of the integer's range"},
		{"9223372036854775808", "9223372036854775808 numeric"}, {"2147483647 + n", "~out of the integer's range"}, {"2147483647 + id", "2147483654 bigint"}, {"32767S + 1S", "~out of the integer's range"},
		{"f + 0.2", "0.30000000000000004 double precision"}, {"f * n", "4.2 double precision"}, {"r + r", "0.2 real"}, {"r + f", "0.20000000149011612 double precision"}, {"1 / f", "10 double precision"}, {"5D % 3", "2 double precision"}, {"7.5D DIV 2", "3 bigint"},
		{"1 / 0", "~evaluate / at line 1, column 3"}, {"1 % 0", "~division by zero"}, {"1.0 / 0", "~division by zero"}, {"f / 0", "~division by zero"}, {"1 DIV 0", "~division by zero"}, {"1e300D * 1e300D", "~out of the float's range"},
		{"digits * 2", "25.00 numeric"}, {"'2' + 1", "3 numeric"}, {"digits + f", "12.6 double precision"}, {"-digits", "-12.50 numeric"},
		{"niln + 1", "NULL"}, {"1 / niln", "NULL"}, {"NULL + 1", "NULL"}, {"-NULL", "NULL"}, {"NULL + NULL", "NULL"},
		{"decimal('NaN') + 1", "NaN numeric"}, {"decimal('Infinity') - decimal('Infinity')", "NaN numeric"}, {"1 / decimal('Infinity')", "0 numeric"}, {"decimal('Infinity') * -1", "-Infinity numeric"},
		{"1e3", "1000 numeric"}, {"1.5e-3", "0.0015 numeric"}, {"2.", "2 numeric"}, {".5", "0.5 numeric"}, {"1e2D", "100 double precision"}, {"5L", "5 bigint"}, {"5S", "5 smallint"}, {"1.50BD", "1.50 numeric"}, {"1F", "1 real"},
		{"0.1 + 0.2 = 0.3", isTrue}, {"name || id", "Grüße7 text"}, {"name || NULL", "NULL"}, {"X'01' || X'02'", "\\x0102 bytea"},
		{"ok + 1", "~it takes numbers"},
	})
}

func TestTimeArithmetic(t *testing.T) {
	check(t, [][2]string{
		{"d + 1", "2024-03-01 date"}, {"1 + d", "2024-03-01 date"}, {"d - 60", "2023-12-31 date"}, {"d + INTERVAL 1 year", "2025-02-28 date"}, {"d - INTERVAL '1' MONTH", "2024-01-29 date"}, {"DATE '2024-01-31' + INTERVAL 1 MONTH", "2024-02-29 date"},
		{"d + INTERVAL 1 hour", "2024-02-29 01:00:00+00 timestamp with time zone"}, {"d + span", "2024-03-31 03:00:00+00 timestamp with time zone"},
		{"at + INTERVAL '1 day 2 hours'", "2024-03-01 15:14:15.5+00 timestamp with time zone"}, {"ts - INTERVAL 0.5 seconds", "2024-02-29 13:14:14.623456 timestamp without time zone"}, {"INTERVAL 1 week + ts", "2024-03-07 13:14:15.123456 timestamp without time zone"},
		{"at - TIMESTAMP '2024-02-28 14:14:15'", "23:00:00.5 interval"}, {"TIMESTAMP '2024-02-28' - at", "-1 days -13:14:15.5 interval"}, {"at - d", "13:14:15.5 interval"},
		{"endless + INTERVAL 1 day", "infinity timestamp with time zone"}, {"endless - at", "~the time is infinite"}, {"old + 1", "0044-03-16 BC date"},
		{"at + INTERVAL 293000 years", "~the time is out of range"}, {"d + 2146000000", "~the time is out of range"},
		{"span + INTERVAL 1 day", "1 mon 3 days 03:00:00 interval"}, {"-span", "-1 mons -2 days -03:00:00 interval"}, {"INTERVAL '1 month -2 days 3:04:05.5'", "1 mon -2 days +03:04:05.5 interval"},
		{"INTERVAL 2 weeks", "14 days interval"}, {"INTERVAL 1 day 2 hours", "1 day 02:00:00 interval"}, {"INTERVAL 1 fortnight", "~units are year"}, {"INTERVAL 1.5 days", "~only hours and what is shorter"}, {"INTERVAL '1-2' YEAR TO MONTH", "~an interval from one unit to another"},
		{"at + niln", "~it takes numbers, or a time and an INTERVAL"}, {"d + niln", "NULL"}, {"nil || d", "NULL"},
	})
}

func TestCase(t *testing.T) {
	check(t, [][2]string{
		{"CASE WHEN id = 7 THEN 'seven' WHEN ok THEN 'ok' END", "seven text"}, {"CASE WHEN niln = 1 THEN 'a' ELSE 'b' END", "b text"}, {"CASE WHEN id = 8 THEN 1 END", "NULL"},
		{"CASE operation WHEN 'INSERT' THEN 1 WHEN 'DELETE' THEN 2.5 END", "2.5 numeric"}, {"CASE nil WHEN NULL THEN 1 ELSE 2 END", "2 integer"}, {"CASE WHEN NULL THEN 1 ELSE id END", "7 bigint"},
		{"CASE WHEN ok THEN NULL END", "NULL"}, {"CASE WHEN ok THEN d ELSE at END", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"CASE WHEN ok THEN price END", "12.50 numeric(12,2)"}, {"CASE WHEN ok THEN fixed END", "DELETE   character(8)"},
		{"CASE WHEN NOT ok THEN id ELSE '8' END", "8 bigint"}, {"CASE WHEN ok THEN ok END", isTrue}, {"CASE WHEN ok THEN mood ELSE 'sad' END", "happy text"}, {"CASE WHEN ok THEN 1.5 ELSE f END", "1.5 double precision"},
		{"coalesce(nil, name)", "Grüße text"}, {"coalesce(NULL, nil)", "NULL"}, {"coalesce(niln, 1, 1/0)", "1 numeric"}, {"coalesce(price, '1.234')", "12.50 numeric"}, {"nvl(nil, 'x')", "x text"}, {"ifnull(niln, id)", "7 bigint"},
		{"nullif(id, 7)", "NULL"}, {"nullif(id, 8)", "7 bigint"}, {"nullif(nil, 'x')", "NULL"}, {"nullif('a', '')", "a text"},
		{"if(ok, 1, 2)", "1 integer"}, {"iff(NULL, 1, 2)", "2 integer"}, {"if(id < 0, 'a', NULL)", "NULL"},
		{"greatest(id, n, NULL)", "42 bigint"}, {"least(1, 0.5, niln)", "0.5 numeric"}, {"greatest('a', operation)", "a text"}, {"greatest(nil, NULL)", "NULL"}, {"least(d, at)", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"greatest(j, j)", "~have no order"},
	})
}

func TestCasts(t *testing.T) {
	check(t, [][2]string{
		{"CAST(digits AS numeric)", "12.50 numeric"}, {"CAST(digits AS decimal(10,1))", "12.5 numeric(10,1)"}, {"CAST(12.55 AS decimal(3,1))", "12.6 numeric(3,1)"}, {"CAST(-12.55 AS decimal(3,1))", "-12.6 numeric(3,1)"}, {"CAST(99.95 AS decimal(3,1))", "~out of the numeric's range"}, {"TRY_CAST(99.95 AS decimal(3,1))", "NULL"}, {"CAST(2.5 AS decimal(5))", "3 numeric(5,0)"},
		{"CAST(digits AS int)", "~the text is no integer"}, {"TRY_CAST(digits AS int)", "NULL"}, {"CAST(' +7 ' AS bigint)", "7 bigint"}, {"CAST(2.9 AS int)", "2 integer"}, {"CAST(-2.9D AS int)", "-2 integer"}, {"CAST(300 AS tinyint)", "300 smallint"}, {"CAST(70000 AS smallint)", "~out of the integer's range"}, {"CAST('9223372036854775808' AS bigint)", "~out of the integer's range"}, {"CAST(double('NaN') AS int)", "~out of the integer's range"}, {"CAST(ok AS int)", "1 integer"}, {"CAST(1e30D AS bigint)", "~out of the integer's range"},
		{"CAST('1e2' AS double)", "100 double precision"}, {"CAST('inf' AS float)", "Infinity real"}, {"CAST('0x10' AS double)", "~the text is no number"}, {"CAST('1_0' AS double)", "~the text is no number"}, {"CAST(1e39 AS float)", "~out of the float's range"}, {"CAST(f AS numeric)", "0.1 numeric"}, {"CAST(r AS numeric)", "0.1 numeric"}, {"r::double", "0.10000000149011612 double precision"},
		{"CAST(' Yes ' AS boolean)", isTrue}, {"'off'::boolean", isFalse}, {"CAST(2 AS boolean)", isTrue}, {"CAST(0.0 AS boolean)", isFalse}, {"CAST('2' AS boolean)", "~the text is no boolean"},
		{"string(ok)", "true text"}, {"string(price)", "12.50 text"}, {"string(f)", "0.1 text"}, {"string(d)", "2024-02-29 text"}, {"string(at)", "2024-02-29 13:14:15.5+00 text"}, {"string(span)", "1 mon 2 days 03:00:00 text"}, {"string(X'616263')", "abc text"}, {"string(bin)", "~the bytes are not UTF-8 text"}, {"string(X'00')", "~NUL"}, {"string(clock)", "08:30:00 text"},
		{"CAST(name AS varchar(3))", "Grü character varying(3)"}, {"CAST('ab' AS char(4))", "ab   character(4)"}, {"CAST('ab' AS char(4)) || 'c'", "abc text"}, {"name::varchar", "Grüße character varying"},
		{"date('2024-02-29 12:00:00')", "2024-02-29 date"}, {"CAST('2024' AS date)", "2024-01-01 date"}, {"'2024-3'::date", "2024-03-01 date"}, {"date(at)", "2024-02-29 date"}, {"date('20240229')", "~the text is no date"}, {"date(endless)", "infinity date"}, {"TRY_CAST('2023-02-29' AS date)", "NULL"},
		{"timestamp('2024-02-29')", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"timestamp(d)", "2024-02-29 00:00:00+00 timestamp with time zone"}, {"CAST(at AS timestamp_ntz)", "2024-02-29 13:14:15.5 timestamp without time zone"}, {"timestamp(0)", "1970-01-01 00:00:00+00 timestamp with time zone"}, {"timestamp(1.5)", "1970-01-01 00:00:01.5+00 timestamp with time zone"}, {"timestamp(-0.5D)", "1969-12-31 23:59:59.5+00 timestamp with time zone"}, {"bigint(timestamp '1969-12-31 23:59:59.5')", "-1 bigint"}, {"double(timestamp '1970-01-01 00:00:01.25')", "1.25 double precision"}, {"decimal(timestamp '1970-01-01 00:00:01.25')", "1.250000 numeric"}, {"bigint(endless)", "~the time is infinite"},
		{"timestamp '2024-02-29 24:00:00'", "2024-03-01 00:00:00+00 timestamp with time zone"}, {"timestamp '2024-02-29 12:00:00.1234567'", "2024-02-29 12:00:00.123456+00 timestamp with time zone"}, {"timestamp '2024-02-29 1:2'", "2024-02-29 01:02:00+00 timestamp with time zone"}, {"timestamp '294277-01-01'", "~the time is out of range"}, {"timestamp '2024-02-29 12:00:00 Europe/Rome'", "~the text is no timestamp"}, {"timestamp_ntz '2024-02-29 12:00:00'", "2024-02-29 12:00:00 timestamp without time zone"},
		{"binary('abc')", "\\x616263 bytea"}, {"'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'::uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 uuid"}, {"TRY_CAST('a0eebc99' AS uuid)", "NULL"}, {"string(j) LIKE '%2.50%'", isTrue}, {"CAST(NULL AS date)", "NULL"}, {"nil::int", "NULL"}, {"string(addr)", "10.0.0.1 text"},
	})
}

func TestJSONPaths(t *testing.T) {
	check(t, [][2]string{
		{"j:a.b[0]", "1 text"}, {"j:a.b[1]", "2.50 text"}, {"j:a.b[2]", `x"y text`}, {"j:a.b[3]", "NULL"}, {"j:a.b[9]", "NULL"}, {"j:a", `{"b": [1, 2.50, "x\"y", null]} text`}, {"j.a.b[0]", "1 text"}, {"j['k k']", "true text"}, {"j:`k k`", "true text"}, {"j:['a']['b'][1]::numeric + 1", "3.50 numeric"},
		{"j:s", "üü text"}, {"j:A", "NULL"}, {"j:a[0]", "NULL"}, {"j:s.x", "NULL"}, {"j['a'].b[1] > 2", isTrue}, {"source.j.a.b[0] = 1", isTrue},
		{"js:a.c", "d text"}, {"js -> 'a'", `{"c":"d"} json`}, {"js -> 'a' ->> 'c'", "d text"}, {"j -> 'a' -> 'b' ->> -1", "NULL"}, {"j -> 'a' -> 'b' ->> -2", `x"y text`}, {"j -> 'a' -> 'b' -> 3", "null jsonb"}, {"j ->> 'k k'", "true text"}, {"j -> 'x'", "NULL"},
		{"doc:price::double > 9", isTrue}, {"doc:n[0].q", "1 text"}, {"get_json_object(doc, '$.n[0].q')", "1 text"}, {"get_json_object(doc, '$')", `{"price":"9.5","n":[{"q":1}]} text`}, {"get_json_object(j, \"$['k k']\")", "true text"}, {"get_json_object(doc, '$.n[*].q')", "~without *"}, {"get_json_object(doc, 'price')", "~of the form $.field"},
		{"name:a", "NULL"}, {"nil:a", "NULL"}, {"id:a", "~a path leads into a JSON document, this is bigint"}, {`'{"a":"\u0000"}':a`, "~NUL"}, {`'{"a":"\ud83d\ude00\n"}':a = concat('😀', chr)`, "~unknown column chr"}, {`length('{"a":"\ud83d\ude00\/"}':a)`, "2 integer"}, {`'{"\u0061":5}':a`, "5 text"}, {`'[1,[2,3]]':[1][0]`, "2 text"}, {"NULL:a", "NULL"},
	})
}
