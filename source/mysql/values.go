package mysql

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"net/netip"
	"strconv"
)

// errShort is a value that ends before its type says.
var errShort = errors.New("the row image is shorter than its columns")

// errZeroDate is a date that no calendar has, under zero_dates: error.
var errZeroDate = errors.New("a zero or partial date")

// moment is a date and time of day as the server holds them: no zone, and months and
// days that may be 0.
type moment struct {
	year, month, day     int
	hour, minute, second int
	micro                int
}

// real reports whether a calendar has the date.
func (m moment) real() bool { return m.month > 0 && m.day > 0 }

// appendLiteral appends the server's own text, with six digits behind the second if
// there are any.
func (m moment) appendLiteral(dst []byte, clock bool) []byte {
	dst = appendPadded(dst, m.year, 4)
	dst = append(dst, '-')
	dst = appendPadded(dst, m.month, 2)
	dst = append(dst, '-')
	dst = appendPadded(dst, m.day, 2)
	if clock {
		dst = append(dst, ' ')
		dst = appendClock(dst, m.hour, m.minute, m.second, m.micro)
	}
	return dst
}

// appendText appends PostgreSQL's text: the year 0 is 1 BC there.
func (m moment) appendText(dst []byte, clock, zone bool) []byte {
	bc := m.year == 0
	if bc {
		m.year = 1
	}
	dst = m.appendLiteral(dst, clock)
	if zone {
		dst = append(dst, "+00"...)
	}
	if bc {
		dst = append(dst, " BC"...)
	}
	return dst
}

// appendPadded appends n, not negative, with at least width digits.
func appendPadded(dst []byte, n, width int) []byte {
	for limit := pow10(width - 1); limit > 1 && n < limit; limit /= 10 {
		dst = append(dst, '0')
	}
	return strconv.AppendInt(dst, int64(n), 10)
}

func pow10(n int) int {
	p := 1
	for range n {
		p *= 10
	}
	return p
}

// appendClock appends hh:mm:ss and the fraction without trailing zeros.
func appendClock(dst []byte, hour, minute, second, micro int) []byte {
	dst = append(dst, byte('0'+hour/10), byte('0'+hour%10), ':', byte('0'+minute/10), byte('0'+minute%10), ':', byte('0'+second/10), byte('0'+second%10))
	return appendFraction(dst, micro)
}

func appendFraction(dst []byte, micro int) []byte {
	if micro == 0 {
		return dst
	}
	var d [7]byte
	d[0] = '.'
	for i := 6; i > 0; i-- {
		d[i] = byte('0' + micro%10)
		micro /= 10
	}
	n := 7
	for d[n-1] == '0' {
		n--
	}
	return append(dst, d[:n]...)
}

// fractionBytes is how many bytes hold a fraction of that many digits.
func fractionBytes(digits int) int { return (digits + 1) / 2 }

// fraction reads a fraction as microseconds.
func fraction(data []byte, digits int) int {
	switch fractionBytes(digits) {
	case 1:
		return int(data[0]) * 10000
	case 2:
		return int(binary.BigEndian.Uint16(data)) * 100
	case 3:
		return int(data[0])<<16 | int(data[1])<<8 | int(data[2])
	}
	return 0
}

// datetime2 reads MYSQL_TYPE_DATETIME2: five bytes, then the fraction.
func datetime2(data []byte, digits int) (m moment, n int, err error) {
	n = 5 + fractionBytes(digits)
	if len(data) < n {
		return m, 0, errShort
	}
	packed := (uint64(data[0])<<32 | uint64(binary.BigEndian.Uint32(data[1:]))) - 0x8000000000
	return unpack(packed, fraction(data[5:], digits)), n, nil
}

// unpack reads the packed form of a date with a time of day.
func unpack(packed uint64, micro int) moment {
	ymd, hms := packed>>17, packed&(1<<17-1)
	ym := ymd >> 5
	return moment{year: int(ym / 13), month: int(ym % 13), day: int(ymd & 31), hour: int(hms >> 12), minute: int(hms >> 6 & 63), second: int(hms & 63), micro: micro}
}

// datetime1 reads the older MYSQL_TYPE_DATETIME: YYYYMMDDhhmmss as a number.
func datetime1(v uint64) moment {
	d, t := int(v/1000000), int(v%1000000)
	return moment{year: d / 10000, month: d / 100 % 100, day: d % 100, hour: t / 10000, minute: t / 100 % 100, second: t % 100}
}

// date reads MYSQL_TYPE_DATE: three bytes.
func date(v int) moment { return moment{year: v >> 9, month: v >> 5 & 15, day: v & 31} }

// instant makes a moment in UTC of seconds since 1970.
func instant(seconds int64, micro int) moment {
	days, rest := seconds/86400, int(seconds%86400)
	// The civil calendar from a count of days (H. Hinnant, "chrono-compatible low-level
	// date algorithms").
	z := days + 719468
	era := z / 146097
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	m := moment{year: int(yoe + era*400), month: int(mp + 3), day: int(doy - (153*mp+2)/5 + 1)}
	if m.month > 12 {
		m.month -= 12
	}
	if m.month <= 2 {
		m.year++
	}
	m.hour, m.minute, m.second, m.micro = rest/3600, rest/60%60, rest%60, micro
	return m
}

// appendTime2 reads MYSQL_TYPE_TIME2 (three bytes, then the fraction; the fraction of a
// negative time counts upwards from the second below) and appends it as an interval.
func appendTime2(dst, data []byte, digits int) ([]byte, int, error) {
	n := 3 + fractionBytes(digits)
	if len(data) < n {
		return dst, 0, errShort
	}
	var packed int64
	switch fractionBytes(digits) {
	case 0:
		packed = ((int64(data[0])<<16 | int64(data[1])<<8 | int64(data[2])) - 0x800000) << 24
	case 1:
		whole := (int64(data[0])<<16 | int64(data[1])<<8 | int64(data[2])) - 0x800000
		part := int64(data[3])
		if whole < 0 && part != 0 {
			whole, part = whole+1, part-0x100
		}
		packed = whole<<24 + part*10000
	case 2:
		whole := (int64(data[0])<<16 | int64(data[1])<<8 | int64(data[2])) - 0x800000
		part := int64(binary.BigEndian.Uint16(data[3:]))
		if whole < 0 && part != 0 {
			whole, part = whole+1, part-0x10000
		}
		packed = whole<<24 + part*100
	case 3:
		packed = (int64(data[0])<<40 | int64(data[1])<<32 | int64(data[2])<<24 | int64(data[3])<<16 | int64(data[4])<<8 | int64(data[5])) - 0x800000000000
	}
	negative := packed < 0
	if negative {
		packed = -packed
	}
	hms := int(packed >> 24)
	return appendInterval(dst, negative, hms>>12&1023, hms>>6&63, hms&63, int(packed&(1<<24-1))), n, nil
}

// appendInterval appends a span of hours as PostgreSQL's interval: hours go beyond a day.
func appendInterval(dst []byte, negative bool, hour, minute, second, micro int) []byte {
	if negative && (hour|minute|second|micro) != 0 {
		dst = append(dst, '-')
	}
	if hour < 100 {
		return appendClock(dst, hour, minute, second, micro)
	}
	dst = strconv.AppendInt(dst, int64(hour), 10)
	dst = append(dst, ':', byte('0'+minute/10), byte('0'+minute%10), ':', byte('0'+second/10), byte('0'+second%10))
	return appendFraction(dst, micro)
}

// digitBytes is how many bytes hold that many decimal digits (0 to 9).
var digitBytes = [10]int{0, 1, 1, 2, 2, 3, 3, 4, 4, 4}

// decimalBytes is the size of a stored DECIMAL.
func decimalBytes(precision, scale int) int {
	whole := precision - scale
	return whole/9*4 + digitBytes[whole%9] + scale/9*4 + digitBytes[scale%9]
}

// appendDecimal appends a stored DECIMAL with all its digits behind the point. The first
// bit is the inverted sign; of a negative number all bits are inverted.
func appendDecimal(dst, data []byte, precision, scale int) ([]byte, int, error) {
	size := decimalBytes(precision, scale)
	if precision < scale || len(data) < size || size == 0 {
		return dst, 0, errShort
	}
	var mask byte
	if data[0]&0x80 == 0 {
		mask = 0xff
	}
	pos := 0
	take := func(n int) uint32 {
		var v uint32
		for range n {
			b := data[pos] ^ mask
			if pos == 0 {
				b ^= 0x80
			}
			v = v<<8 | uint32(b)
			pos++
		}
		return v
	}
	start := len(dst)
	if mask != 0 {
		dst = append(dst, '-')
	}
	digits := len(dst)
	nonzero := false
	group := func(v uint32, width int) {
		nonzero = nonzero || v != 0
		switch {
		case width == 0:
		case len(dst) == digits && v == 0: // leading zeros
		case len(dst) == digits:
			dst = strconv.AppendUint(dst, uint64(v), 10)
		default:
			dst = appendFixed(dst, v, width)
		}
	}
	whole := precision - scale
	group(take(digitBytes[whole%9]), whole%9)
	for range whole / 9 {
		group(take(4), 9)
	}
	if len(dst) == digits {
		dst = append(dst, '0')
	}
	if scale > 0 {
		dst = append(dst, '.')
		for range scale / 9 {
			v := take(4)
			nonzero = nonzero || v != 0
			dst = appendFixed(dst, v, 9)
		}
		if rest := scale % 9; rest > 0 {
			v := take(digitBytes[rest])
			nonzero = nonzero || v != 0
			dst = appendFixed(dst, v, rest)
		}
	}
	if mask != 0 && !nonzero { // no negative zero
		dst = append(dst[:start], dst[digits:]...)
	}
	return dst, size, nil
}

// appendFixed appends v with exactly width digits.
func appendFixed(dst []byte, v uint32, width int) []byte {
	at := len(dst)
	for range width {
		dst = append(dst, '0')
	}
	for i := at + width - 1; i >= at; i-- {
		dst[i] = byte('0' + v%10)
		v /= 10
	}
	return dst
}

// appendBytea appends PostgreSQL's hexadecimal text form.
func appendBytea(dst, data []byte) []byte {
	dst = append(dst, '\\', 'x')
	return hex.AppendEncode(dst, data)
}

// appendGeometry appends the well-known binary form of a geometry that is held as SRID
// (four bytes, little endian) and that form; a SRID other than 0 goes into it as PostGIS
// has it (EWKB): a bit in the type, and the number behind it.
func appendGeometry(dst, data []byte) ([]byte, error) {
	if len(data) < 9 {
		return dst, errShort
	}
	srid, wkb := binary.LittleEndian.Uint32(data), data[4:]
	if srid == 0 {
		return appendBytea(dst, wkb), nil
	}
	var head [9]byte
	head[0] = wkb[0]
	var order binary.ByteOrder = binary.LittleEndian
	if wkb[0] == 0 {
		order = binary.BigEndian
	}
	order.PutUint32(head[1:], order.Uint32(wkb[1:])|0x20000000)
	order.PutUint32(head[5:], srid)
	dst = appendBytea(dst, head[:])
	return hex.AppendEncode(dst, wkb[5:]), nil
}

// appendBits appends the lowest n bits of a big-endian number as zeros and ones.
func appendBits(dst, data []byte, n int) []byte {
	for i := n - 1; i >= 0; i-- {
		at := len(data) - 1 - i/8
		if at >= 0 && data[at]>>(i%8)&1 != 0 {
			dst = append(dst, '1')
		} else {
			dst = append(dst, '0')
		}
	}
	return dst
}

func appendFloat32(dst []byte, f float32) []byte {
	return strconv.AppendFloat(dst, float64(f), 'g', -1, 32)
}

func appendFloat64(dst []byte, f float64) []byte { return strconv.AppendFloat(dst, f, 'g', -1, 64) }

func float32At(data []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(data)) }

func float64At(data []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(data)) }

// uintAt reads a little-endian number of n bytes.
func uintAt(data []byte, n int) uint64 {
	var v uint64
	for i := n - 1; i >= 0; i-- {
		v = v<<8 | uint64(data[i])
	}
	return v
}

// appendUUID appends the text of 16 bytes.
func appendUUID(dst, b []byte) []byte {
	for i, part := range [][]byte{b[:4], b[4:6], b[6:8], b[8:10], b[10:16]} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, part)
	}
	return dst
}

// appendAddress appends an IPv4 (4 bytes) or IPv6 address as the server writes it.
func appendAddress(dst, b []byte) ([]byte, error) {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return dst, errShort
	}
	if len(b) == 16 && uintAt(b, 8)|uintAt(b[8:], 4) == 0 && b[12]|b[13] != 0 { // an IPv4 address in the old embedding
		dst = append(dst, "::"...)
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return a.AppendTo(dst), nil
}
