package mysql

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// quote makes an identifier.
func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// literal makes a string constant: with NO_BACKSLASH_ESCAPES, which every session of
// ours has set, a quote is the only letter with a meaning.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// appendLiteral is literal for texts in bytes.
func appendLiteral(dst, s []byte) []byte {
	dst = append(dst, '\'')
	for _, b := range s {
		if b == '\'' {
			dst = append(dst, '\'')
		}
		dst = append(dst, b)
	}
	return append(dst, '\'')
}

// appendOctets makes a constant of bytes.
func appendOctets(dst, b []byte) []byte {
	dst = append(dst, "x'"...)
	dst = hex.AppendEncode(dst, b)
	return append(dst, '\'')
}

// bind puts constants in the place of a statement's question marks, in their order. It
// is for statements of the bookkeeping, which hold no other question marks.
func bind(sql string, args ...any) string {
	var b strings.Builder
	for _, arg := range args {
		before, after, _ := strings.Cut(sql, "?")
		b.WriteString(before)
		b.WriteString(constant(arg))
		sql = after
	}
	b.WriteString(sql)
	return b.String()
}

func constant(arg any) string {
	switch v := arg.(type) {
	case nil:
		return "NULL"
	case string:
		return literal(v)
	case []byte:
		if v == nil {
			return "NULL"
		}
		return string(appendOctets(nil, v))
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint32:
		return strconv.FormatUint(uint64(v), 10)
	case uint16:
		return strconv.FormatUint(uint64(v), 10)
	case bool:
		if v {
			return "1"
		}
		return "0"
	case time.Time:
		if v.IsZero() {
			return "NULL"
		}
		return "TIMESTAMP'" + string(appendInstant(nil, v.UnixMicro())) + "'"
	case fmt.Stringer:
		return literal(v.String())
	}
	panic(fmt.Sprintf("a constant cannot be a %T", arg))
}

// appendInstant spells an instant, in microseconds since 1970, as the servers print a
// DATETIME(6) in UTC.
func appendInstant(dst []byte, micros int64) []byte {
	t := time.UnixMicro(micros).UTC()
	if year := t.Year(); year >= 0 && year < 1000 {
		dst = append(dst, "0000"[len(strconv.Itoa(year)):]...)
		dst = strconv.AppendInt(dst, int64(year), 10)
		return t.AppendFormat(dst, "-01-02 15:04:05.000000")
	}
	return t.AppendFormat(dst, "2006-01-02 15:04:05.000000")
}

// The instants that a DATETIME holds.
const (
	firstInstant = -62_135_596_800_000_000 // 0001-01-01
	lastInstant  = 253_402_300_799_999_999 // 9999-12-31 23:59:59.999999
)

// micros is an expression for the microseconds since 1970 of a DATETIME(6).
func micros(expr string) string {
	return "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', " + expr + ")"
}

// appendEscaped writes a field of LOAD DATA with FIELDS TERMINATED BY tab ESCAPED BY
// backslash, LINES TERMINATED BY newline.
func appendEscaped(dst, s []byte) []byte {
	for _, b := range s {
		switch b {
		case '\\':
			dst = append(dst, '\\', '\\')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		case 0:
			dst = append(dst, '\\', '0')
		default:
			dst = append(dst, b)
		}
	}
	return dst
}
