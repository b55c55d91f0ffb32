package pgvalue

import (
	"encoding/binary"
	"math"
	"strconv"

	"tailrace/internal/change"
)

// PostgreSQL counts days and microseconds from 2000-01-01; so do these
// functions, because its whole range fits 64 bits only from there.
const (
	UnixEpochDays   = 10957                        // 2000-01-01 in days since 1970-01-01
	UnixEpochMicros = UnixEpochDays * microsPerDay // the same in microseconds

	microsPerSecond = 1_000_000
	microsPerMinute = 60 * microsPerSecond
	microsPerHour   = 60 * microsPerMinute
	microsPerDay    = 24 * microsPerHour

	maxZoneSeconds = 16*3600 - 1 // MAX_TZDISP_HOUR, exclusive of 16 hours
)

// Date reads a date as days since 2000-01-01. An infinite one is Special, with
// zero days.
func Date(v change.Value) (days int32, s Special, err error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) != 4 {
			return 0, Finite, errDate
		}
		switch d := int32(binary.BigEndian.Uint32(v.Data)); d {
		case math.MaxInt32:
			return 0, Infinity, nil
		case math.MinInt32:
			return 0, NegInfinity, nil
		default:
			return d, Finite, nil
		}
	case change.AsText:
		if s := infinity(v.Data); s != Finite {
			return 0, s, nil
		}
		b, bc := cutBC(v.Data)
		n, rest, ok := parseDate(b, bc)
		if !ok || len(rest) != 0 {
			return 0, Finite, errDate
		}
		return n, Finite, nil
	}
	return 0, Finite, errDate
}

// Time reads a time of day as microseconds since midnight, 24:00:00 included.
func Time(v change.Value) (int64, error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) == 8 {
			if n := int64(binary.BigEndian.Uint64(v.Data)); n >= 0 && n <= microsPerDay {
				return n, nil
			}
		}
	case change.AsText:
		n, rest, ok := parseClock(v.Data)
		if ok && len(rest) == 0 && n <= microsPerDay {
			return n, nil
		}
	}
	return 0, errTime
}

// TimeTZ reads a time of day with its zone in seconds east of UTC.
func TimeTZ(v change.Value) (micros int64, east int32, err error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) != 12 {
			return 0, 0, errTimeTZ
		}
		micros = int64(binary.BigEndian.Uint64(v.Data))
		east = -int32(binary.BigEndian.Uint32(v.Data[8:])) // the server stores seconds west
		if micros < 0 || micros > microsPerDay || east < -maxZoneSeconds || east > maxZoneSeconds {
			return 0, 0, errTimeTZ
		}
		return micros, east, nil
	case change.AsText:
		n, rest, ok := parseClock(v.Data)
		if !ok || n > microsPerDay {
			return 0, 0, errTimeTZ
		}
		z, ok := parseZone(rest)
		if !ok {
			return 0, 0, errTimeTZ
		}
		return n, z, nil
	}
	return 0, 0, errTimeTZ
}

// Timestamp reads a timestamp, with or without time zone, as microseconds since
// 2000-01-01 00:00 (UTC for an instant). An infinite one is Special, with zero
// microseconds.
func Timestamp(v change.Value, k change.Kind) (micros int64, s Special, err error) {
	err = errTimestamp
	if k == change.TimestampTZ {
		err = errTimestampTZ
	}
	switch v.State {
	case change.Binary:
		if len(v.Data) != 8 {
			return 0, Finite, err
		}
		switch n := int64(binary.BigEndian.Uint64(v.Data)); n {
		case math.MaxInt64:
			return 0, Infinity, nil
		case math.MinInt64:
			return 0, NegInfinity, nil
		default:
			return n, Finite, nil
		}
	case change.AsText:
		if s := infinity(v.Data); s != Finite {
			return 0, s, nil
		}
		b, bc := cutBC(v.Data)
		days, rest, ok := parseDate(b, bc)
		if !ok || len(rest) < 1 || rest[0] != ' ' {
			return 0, Finite, err
		}
		clock, rest, ok := parseClock(rest[1:])
		if !ok || clock > microsPerDay {
			return 0, Finite, err
		}
		var zone int32
		if k == change.TimestampTZ {
			if zone, ok = parseZone(rest); !ok {
				return 0, Finite, err
			}
		} else if len(rest) != 0 {
			return 0, Finite, err
		}
		// The lowest timestamp's day times a day's length still fits: the server's
		// range is 4714 BC to 294276 AD, checked here against overflow alone.
		const dayLimit = math.MaxInt64/microsPerDay - 1
		if int64(days) > dayLimit || int64(days) < -dayLimit {
			return 0, Finite, err
		}
		return int64(days)*microsPerDay + clock - int64(zone)*microsPerSecond, Finite, nil
	}
	return 0, Finite, err
}

func infinity(b []byte) Special {
	switch string(b) {
	case "infinity":
		return Infinity
	case "-infinity":
		return NegInfinity
	}
	return Finite
}

func cutBC(b []byte) (rest []byte, bc bool) {
	if n := len(b) - 3; n > 0 && string(b[n:]) == " BC" {
		return b[:n], true
	}
	return b, false
}

// digits reads between min and max decimal digits off the front of b.
func digits(b []byte, min, max int) (n int, rest []byte, ok bool) {
	i := 0
	for i < len(b) && i < max && b[i]-'0' <= 9 {
		n = n*10 + int(b[i]-'0')
		i++
	}
	return n, b[i:], i >= min
}

// parseDate reads yyyy-mm-dd (four or more digits of year) as days since
// 2000-01-01.
func parseDate(b []byte, bc bool) (days int32, rest []byte, ok bool) {
	y, b, ok1 := digits(b, 4, 7)
	if !ok1 || len(b) < 6 || b[0] != '-' || b[3] != '-' {
		return 0, nil, false
	}
	m, _, ok1 := digits(b[1:3], 2, 2)
	d, _, ok2 := digits(b[4:6], 2, 2)
	if !ok1 || !ok2 || y == 0 || m < 1 || m > 12 || d < 1 || d > 31 {
		return 0, nil, false
	}
	if bc {
		y = 1 - y
	}
	n := daysFromCivil(int64(y), int64(m), int64(d))
	if n < math.MinInt32+1 || n > math.MaxInt32-1 {
		return 0, nil, false
	}
	return int32(n), b[6:], true
}

// parseClock reads hh:mm:ss[.f...] as microseconds; up to six decimals.
func parseClock(b []byte) (micros int64, rest []byte, ok bool) {
	if len(b) < 8 || b[2] != ':' || b[5] != ':' {
		return 0, nil, false
	}
	h, _, ok1 := digits(b[0:2], 2, 2)
	m, _, ok2 := digits(b[3:5], 2, 2)
	s, _, ok3 := digits(b[6:8], 2, 2)
	if !ok1 || !ok2 || !ok3 || h > 24 || m > 59 || s > 60 {
		return 0, nil, false
	}
	micros = int64(h)*microsPerHour + int64(m)*microsPerMinute + int64(s)*microsPerSecond
	f, rest, ok := parseFraction(b[8:])
	return micros + f, rest, ok
}

// parseFraction reads an optional point and one to six decimals as microseconds.
func parseFraction(b []byte) (micros int64, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '.' {
		return 0, b, true
	}
	f, rest, ok := digits(b[1:], 1, 6)
	for n := len(b) - 1 - len(rest); n < 6; n++ {
		f *= 10
	}
	return int64(f), rest, ok
}

// parseZone reads +hh[:mm[:ss]] up to the end of b as seconds east of UTC.
func parseZone(b []byte) (east int32, ok bool) {
	if len(b) < 3 || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	neg := b[0] == '-'
	total, unit := 0, 3600
	for b = b[1:]; ; b = b[1:] {
		n, rest, ok := digits(b, 2, 2)
		if !ok || unit < 3600 && n > 59 {
			return 0, false
		}
		total += n * unit
		b, unit = rest, unit/60
		if len(b) == 0 {
			break
		}
		if b[0] != ':' || unit == 0 {
			return 0, false
		}
	}
	if total > maxZoneSeconds {
		return 0, false
	}
	if neg {
		total = -total
	}
	return int32(total), true
}

// daysFromCivil counts days from 2000-01-01 in the proleptic Gregorian calendar;
// year 0 is 1 BC. Years begin in March so that the leap day comes last.
func daysFromCivil(y, m, d int64) int64 {
	if m <= 2 {
		y--
		m += 12
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	doy := (153*(m-3)+2)/5 + d - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 730425
}

func civilFromDays(days int64) (y, m, d int64) {
	days += 730425 // since 0000-03-01
	era := floorDiv(days, 146097)
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	y, m, d = yoe+era*400, mp+3, doy-(153*mp+2)/5+1
	if m > 12 {
		y, m = y+1, m-12
	}
	return y, m, d
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// AppendDate prints days since 2000-01-01 as the server does.
func AppendDate(dst []byte, days int32, s Special) []byte {
	if s != Finite {
		return appendInfinity(dst, s)
	}
	dst, bc := appendDay(dst, int64(days))
	if bc {
		dst = append(dst, " BC"...)
	}
	return dst
}

// AppendTimestamp prints microseconds since 2000-01-01; zoned adds +00.
func AppendTimestamp(dst []byte, micros int64, s Special, zoned bool) []byte {
	if s != Finite {
		return appendInfinity(dst, s)
	}
	days := floorDiv(micros, microsPerDay)
	dst, bc := appendDay(dst, days)
	dst = AppendTime(append(dst, ' '), micros-days*microsPerDay)
	if zoned {
		dst = append(dst, "+00"...)
	}
	if bc {
		dst = append(dst, " BC"...)
	}
	return dst
}

// AppendTime prints microseconds since midnight.
func AppendTime(dst []byte, micros int64) []byte {
	dst = append2(dst, micros/microsPerHour)
	dst = append2(append(dst, ':'), micros/microsPerMinute%60)
	dst = append2(append(dst, ':'), micros/microsPerSecond%60)
	return appendFraction(dst, micros%microsPerSecond)
}

// AppendTimeTZ prints a time of day with its zone in seconds east of UTC.
func AppendTimeTZ(dst []byte, micros int64, east int32) []byte {
	dst = AppendTime(dst, micros)
	sign := byte('+')
	if east < 0 {
		sign, east = '-', -east
	}
	dst = append2(append(dst, sign), int64(east/3600))
	if east%3600 != 0 {
		dst = append2(append(dst, ':'), int64(east/60%60))
	}
	if east%60 != 0 {
		dst = append2(append(dst, ':'), int64(east%60))
	}
	return dst
}

func appendInfinity(dst []byte, s Special) []byte {
	if s == NegInfinity {
		return append(dst, "-infinity"...)
	}
	return append(dst, "infinity"...)
}

// appendDay prints yyyy-mm-dd; years before 1 as years BC.
func appendDay(dst []byte, days int64) (out []byte, bc bool) {
	y, m, d := civilFromDays(days)
	if y <= 0 {
		y, bc = 1-y, true
	}
	for limit := int64(1000); limit > y && limit > 1; limit /= 10 {
		dst = append(dst, '0')
	}
	dst = strconv.AppendInt(dst, y, 10)
	dst = append2(append(dst, '-'), m)
	return append2(append(dst, '-'), d), bc
}

func append2(dst []byte, n int64) []byte {
	return append(dst, byte('0'+n/10%10), byte('0'+n%10))
}

// appendFraction prints microseconds as a decimal fraction without trailing
// zeros, and nothing for zero.
func appendFraction(dst []byte, micros int64) []byte {
	if micros == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit := int64(100_000); micros != 0; unit /= 10 {
		dst = append(dst, byte('0'+micros/unit))
		micros %= unit
	}
	return dst
}
