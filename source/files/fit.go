package files

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// fit appends the canonical PostgreSQL text of a value that is written as text, as
// CSV fields and JSON strings and numbers are, or reports that it is no value of the
// type. It appends nothing then. Nothing is rounded, except that binary floats hold
// the nearest value they can.
func fit(dst, text []byte, t *change.Type) ([]byte, bool) {
	switch t.Kind {
	case change.Text:
		return append(dst, text...), t.Length == 0 || len(text) <= t.Length || utf8.RuneCount(text) <= t.Length
	case change.Int64:
		return fitInt(dst, text, 64)
	case change.Int32:
		return fitInt(dst, text, 32)
	case change.Int16:
		return fitInt(dst, text, 16)
	case change.Float64:
		return fitFloat(dst, text, 64)
	case change.Float32:
		return fitFloat(dst, text, 32)
	case change.Numeric:
		return fitNumeric(dst, text, t.Precision, t.Scale)
	case change.Bool:
		return fitBool(dst, text)
	case change.Date:
		return fitDate(dst, text)
	case change.Timestamp, change.TimestampTZ:
		return fitTimestamp(dst, text, t.Kind == change.TimestampTZ)
	case change.Time:
		return fitTime(dst, text)
	case change.UUID:
		return fitUUID(dst, text)
	case change.Bytes:
		return fitBytes(dst, text)
	case change.JSON:
		ok, _ := jsonText(text)
		return append(dst, text...), ok
	case change.JSONB:
		ok, spaced := jsonText(text)
		if !ok || !spaced {
			return append(dst, text...), ok
		}
		return compact(dst, text), true
	}
	return dst, false
}

func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func fitBool(dst, text []byte) ([]byte, bool) {
	switch {
	case len(text) == 1 && text[0]|0x20 == 't', len(text) == 4 && strings.EqualFold(view(text), "true"):
		return append(dst, 't'), true
	case len(text) == 1 && text[0]|0x20 == 'f', len(text) == 5 && strings.EqualFold(view(text), "false"):
		return append(dst, 'f'), true
	}
	return dst, false
}

// fitInt takes an optional sign and digits.
func fitInt(dst, text []byte, width int) ([]byte, bool) {
	digits := text
	neg := len(digits) > 0 && digits[0] == '-'
	if neg || len(digits) > 0 && digits[0] == '+' {
		digits = digits[1:]
	}
	if len(digits) == 0 {
		return dst, false
	}
	for _, c := range digits {
		if c-'0' > 9 {
			return dst, false
		}
	}
	for len(digits) > 1 && digits[0] == '0' {
		digits = digits[1:]
	}
	// Every number below the limit's length fits: 18, 9 and 4 digits.
	if short := width * 3 / 10; len(digits) >= short {
		limit := uint64(1)<<(width-1) - 1
		if neg {
			limit++
		}
		if n, err := strconv.ParseUint(view(digits), 10, 64); err != nil || n > limit {
			return dst, false
		}
	}
	if neg && digits[0] != '0' {
		dst = append(dst, '-')
	}
	return append(dst, digits...), true
}

// decimal is a number in decimal notation: digits × 10^-decimals.
type decimal struct {
	neg      bool
	whole    []byte // digits before the point, as written
	fraction []byte // behind it
	exponent int    // beyond ±maxExponent it is at that limit
	hasExp   bool
}

const maxExponent = 200_000 // beyond everything numeric holds

// readDecimal splits [+-]digits[.digits][e[+-]digits]; digits may be missing on one
// side of the point.
func readDecimal(text []byte) (d decimal, ok bool) {
	i := 0
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		d.neg = text[0] == '-'
		i = 1
	}
	from := i
	for i < len(text) && text[i]-'0' <= 9 {
		i++
	}
	d.whole = text[from:i]
	if i < len(text) && text[i] == '.' {
		i++
		from = i
		for i < len(text) && text[i]-'0' <= 9 {
			i++
		}
		d.fraction = text[from:i]
	}
	if len(d.whole)+len(d.fraction) == 0 {
		return d, false
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		d.hasExp = true
		i++
		neg := i < len(text) && text[i] == '-'
		if neg || i < len(text) && text[i] == '+' {
			i++
		}
		from = i
		for i < len(text) && text[i]-'0' <= 9 {
			d.exponent = min(d.exponent*10+int(text[i]-'0'), maxExponent)
			i++
		}
		if i == from {
			return d, false
		}
		if neg {
			d.exponent = -d.exponent
		}
	}
	return d, i == len(text)
}

// significant counts the digits from the first to the last that is not zero.
func (d *decimal) significant() int {
	w := bytes.TrimLeft(d.whole, "0")
	f := bytes.TrimRight(d.fraction, "0")
	switch {
	case len(w) == 0:
		return len(bytes.TrimLeft(f, "0"))
	case len(f) == 0:
		return len(bytes.TrimRight(w, "0"))
	}
	return len(w) + len(f)
}

// fitFloat prints what the server would of the nearest float.
func fitFloat(dst, text []byte, bits int) ([]byte, bool) {
	d, ok := readDecimal(text)
	if !ok {
		return fitSpecialFloat(dst, text)
	}
	if out, ok := shortFloat(dst, &d, bits); ok {
		return out, true
	}
	f, err := strconv.ParseFloat(view(text), bits)
	if err != nil || f == 0 && d.significant() > 0 { // beyond the range at either end
		return dst, false
	}
	return pgvalue.AppendFloat(dst, f, bits), true
}

// shortFloat prints a number without arithmetic where that is the same: up to 15
// digits (6 in 32 bits) survive a float, so they are the shortest ones already, and
// numbers of that size are printed without an exponent.
func shortFloat(dst []byte, d *decimal, bits int) ([]byte, bool) {
	most := 15
	if bits == 32 {
		most = 6
	}
	w, f := d.whole, d.fraction
	if d.hasExp || len(w) == 0 {
		return dst, false
	}
	for len(w) > 1 && w[0] == '0' {
		w = w[1:]
	}
	for len(f) > 0 && f[len(f)-1] == '0' {
		f = f[:len(f)-1]
	}
	digits := len(w) + len(f)
	if w[0] == '0' && len(f) > 0 {
		zeros := len(f) - len(bytes.TrimLeft(f, "0"))
		if digits = len(f) - zeros; zeros > 3 { // below 0.0001
			return dst, false
		}
	}
	if digits > most {
		return dst, false
	}
	if d.neg {
		dst = append(dst, '-')
	}
	dst = append(dst, w...)
	if len(f) > 0 {
		dst = append(append(dst, '.'), f...)
	}
	return dst, true
}

func fitSpecialFloat(dst, text []byte) ([]byte, bool) {
	switch word := view(text); {
	case len(text) > len("-infinity"):
	case strings.EqualFold(word, "nan"):
		return append(dst, "NaN"...), true
	case strings.EqualFold(word, "infinity"), strings.EqualFold(word, "+infinity"), strings.EqualFold(word, "inf"), strings.EqualFold(word, "+inf"):
		return append(dst, "Infinity"...), true
	case strings.EqualFold(word, "-infinity"), strings.EqualFold(word, "-inf"):
		return append(dst, "-Infinity"...), true
	}
	return dst, false
}

// Limits of PostgreSQL's numeric: digits before and behind the point.
const (
	numericWhole    = 131072
	numericFraction = 16383
)

// fitNumeric prints a number as the server does: with exactly scale decimals, or,
// if precision is 0, with those that were written.
func fitNumeric(dst, text []byte, precision, scale int) ([]byte, bool) {
	d, ok := readDecimal(text)
	if !ok {
		return dst, false
	}
	whole, fraction := d.whole, d.fraction
	if d.exponent != 0 {
		whole, fraction = shift(whole, fraction, d.exponent)
	}
	for len(whole) > 0 && whole[0] == '0' {
		whole = whole[1:]
	}
	decimals := len(fraction)
	if precision > 0 {
		for len(fraction) > scale {
			if fraction[len(fraction)-1] != '0' {
				return dst, false
			}
			fraction = fraction[:len(fraction)-1]
		}
		if len(whole) > precision-scale {
			return dst, false
		}
		decimals = scale
	}
	if len(whole) > numericWhole || decimals > numericFraction {
		return dst, false
	}
	if d.neg && (len(whole) > 0 || len(bytes.TrimLeft(fraction, "0")) > 0) {
		dst = append(dst, '-')
	}
	if len(whole) == 0 {
		dst = append(dst, '0')
	}
	dst = append(dst, whole...)
	if decimals > 0 {
		dst = append(append(dst, '.'), fraction...)
		for n := len(fraction); n < decimals; n++ {
			dst = append(dst, '0')
		}
	}
	return dst, true
}

// shift moves the point by an exponent. A result beyond numeric's limits comes back
// longer than they are.
func shift(whole, fraction []byte, exponent int) (w, f []byte) {
	all := append(append(make([]byte, 0, len(whole)+len(fraction)), whole...), fraction...)
	point := len(whole) + exponent
	if len(bytes.Trim(all, "0")) == 0 {
		point = min(point, len(all)) // zero is zero at any size
	}
	switch {
	case point > numericWhole+len(all) || point < -numericFraction-1:
		return make([]byte, 0), bytes.Repeat([]byte{'1'}, numericFraction+1)
	case point < 0:
		return nil, append(bytes.Repeat([]byte{'0'}, -point), all...)
	case point > len(all):
		return append(all, bytes.Repeat([]byte{'0'}, point-len(all))...), nil
	}
	return all[:point], all[point:]
}

func fitUUID(dst, text []byte) ([]byte, bool) {
	if len(text) != 36 && len(text) != 32 {
		return dst, false
	}
	start, digits := len(dst), 0
	for i, c := range text {
		if len(text) == 36 && (i == 8 || i == 13 || i == 18 || i == 23) {
			if c != '-' {
				return dst[:start], false
			}
			continue
		}
		if unhex[c] > 15 {
			return dst[:start], false
		}
		if digits == 8 || digits == 12 || digits == 16 || digits == 20 {
			dst = append(dst, '-')
		}
		if c >= 'A' && c <= 'F' {
			c |= 0x20
		}
		dst = append(dst, c)
		digits++
	}
	return dst, true
}

// fitBytes takes PostgreSQL's hex format, \x and digits, or base64.
func fitBytes(dst, text []byte) ([]byte, bool) {
	if len(text) >= 2 && text[0] == '\\' && text[1] == 'x' {
		raw := make([]byte, hex.DecodedLen(len(text)-2))
		if _, err := hex.Decode(raw, text[2:]); err != nil {
			return dst, false
		}
		return pgvalue.AppendBytes(dst, raw), true
	}
	if bytes.ContainsAny(text, "\r\n") { // the decoder skips them
		return dst, false
	}
	raw := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(raw, text)
	if err != nil {
		return dst, false
	}
	return pgvalue.AppendBytes(dst, raw[:n]), true
}
