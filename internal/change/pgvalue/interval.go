package pgvalue

import (
	"encoding/binary"
	"math"
	"strconv"

	"tailrace/internal/change"
)

// Interval is PostgreSQL's interval: three independent parts that are never
// normalised into each other.
type Interval struct {
	Months, Days int32
	Micros       int64
}

// ReadInterval reads an interval. From PostgreSQL 17 on it may be infinite.
func ReadInterval(v change.Value) (i Interval, s Special, err error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) != 16 {
			return i, Finite, errInterval
		}
		i.Micros = int64(binary.BigEndian.Uint64(v.Data))
		i.Days = int32(binary.BigEndian.Uint32(v.Data[8:]))
		i.Months = int32(binary.BigEndian.Uint32(v.Data[12:]))
		switch i {
		case Interval{math.MaxInt32, math.MaxInt32, math.MaxInt64}:
			return Interval{}, Infinity, nil
		case Interval{math.MinInt32, math.MinInt32, math.MinInt64}:
			return Interval{}, NegInfinity, nil
		}
		return i, Finite, nil
	case change.AsText:
		if s := infinity(v.Data); s != Finite {
			return i, s, nil
		}
		i, ok := parseInterval(v.Data)
		if !ok {
			return Interval{}, Finite, errInterval
		}
		return i, Finite, nil
	}
	return i, Finite, errInterval
}

// parseInterval reads IntervalStyle postgres: [n year[s]] [n mon[s]] [n day[s]]
// [[+-]h...:mm:ss[.f]], every part with a sign of its own.
func parseInterval(b []byte) (i Interval, ok bool) {
	if len(b) == 0 {
		return i, false
	}
	var months, days int64
	for len(b) > 0 {
		neg := false
		if b[0] == '-' || b[0] == '+' {
			neg, b = b[0] == '-', b[1:]
		}
		n, rest, ok := digits(b, 1, 12)
		if !ok || len(rest) == 0 {
			return i, false
		}
		if rest[0] == ':' {
			i.Micros, ok = parseIntervalClock(neg, n, rest[1:])
			if !ok {
				return i, false
			}
			break
		}
		if neg {
			n = -n
		}
		word, after := cutWord(rest)
		switch word {
		case " year", " years":
			months += int64(n) * 12
		case " mon", " mons":
			months += int64(n)
		case " day", " days":
			days += int64(n)
		default:
			return i, false
		}
		b = after
	}
	i.Months, i.Days = int32(months), int32(days)
	return i, int64(i.Months) == months && int64(i.Days) == days
}

// cutWord splits " unit" off the front, and the space that follows it.
func cutWord(b []byte) (word string, rest []byte) {
	end := 1
	for end < len(b) && b[end] != ' ' {
		end++
	}
	word, rest = str(b[:end]), b[end:]
	if len(rest) > 0 {
		rest = rest[1:]
	}
	return word, rest
}

// parseIntervalClock reads mm:ss[.f] after the hours. It counts downwards from
// zero where the sign is negative, because the lowest int64 has no opposite.
func parseIntervalClock(neg bool, hours int, b []byte) (int64, bool) {
	if len(b) < 5 || b[2] != ':' {
		return 0, false
	}
	m, _, ok1 := digits(b[0:2], 2, 2)
	s, _, ok2 := digits(b[3:5], 2, 2)
	f, rest, ok3 := parseFraction(b[5:])
	if !ok1 || !ok2 || !ok3 || len(rest) != 0 || int64(hours) > math.MaxInt64/microsPerHour {
		return 0, false
	}
	part := int64(m)*microsPerMinute + int64(s)*microsPerSecond + f
	n := int64(hours) * microsPerHour
	if neg {
		n = -n
		if n < math.MinInt64+part {
			return 0, false
		}
		return n - part, true
	}
	if n > math.MaxInt64-part {
		return 0, false
	}
	return n + part, true
}

// AppendInterval prints i in IntervalStyle postgres.
func AppendInterval(dst []byte, i Interval, s Special) []byte {
	if s != Finite {
		return appendInfinity(dst, s)
	}
	start := len(dst)
	before := false // the part before was negative: a positive one shows its sign
	part := func(n int32, unit string) {
		if n == 0 {
			return
		}
		if len(dst) > start {
			dst = append(dst, ' ')
		}
		if before && n > 0 {
			dst = append(dst, '+')
		}
		dst = strconv.AppendInt(dst, int64(n), 10)
		dst = append(append(dst, ' '), unit...)
		if n != 1 {
			dst = append(dst, 's')
		}
		before = n < 0
	}
	part(i.Months/12, "year")
	part(i.Months%12, "mon")
	part(i.Days, "day")
	if i.Micros == 0 && len(dst) > start {
		return dst
	}
	if len(dst) > start {
		dst = append(dst, ' ')
	}
	u := uint64(i.Micros)
	if i.Micros < 0 {
		u = -u
		dst = append(dst, '-')
	} else if before {
		dst = append(dst, '+')
	}
	if h := u / microsPerHour; h < 100 {
		dst = append2(dst, int64(h))
	} else {
		dst = strconv.AppendUint(dst, h, 10)
	}
	dst = append2(append(dst, ':'), int64(u/microsPerMinute%60))
	dst = append2(append(dst, ':'), int64(u/microsPerSecond%60))
	return appendFraction(dst, int64(u%microsPerSecond))
}
