package files

import (
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

const (
	secondsPerDay = 86_400
	// unixTo2000 is what lies between Unix's epoch and PostgreSQL's, in seconds.
	unixTo2000 = pgvalue.UnixEpochDays * secondsPerDay
)

// isoTime is what ISO 8601 text says.
type isoTime struct {
	seconds  int64 // wall clock since 2000-01-01
	micros   int64 // of a second
	hasClock bool
	hasZone  bool
	east     int64 // seconds east of UTC
}

// readISO reads yyyy-mm-dd, or that, a T or a blank, and hh:mm[:ss[.f...]] with or
// without a zone: Z, +hh, +hhmm, +hh:mm, +hh:mm:ss. A part of a second below a
// microsecond is not read: it could not be kept.
func readISO(b []byte) (t isoTime, ok bool) {
	if len(b) < 10 || b[4] != '-' || b[7] != '-' {
		return t, false
	}
	year, ok1 := number2(b[0:2])
	low, ok2 := number2(b[2:4])
	month, ok3 := number2(b[5:7])
	day, ok4 := number2(b[8:10])
	year = year*100 + low
	if !ok1 || !ok2 || !ok3 || !ok4 || year == 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return t, false
	}
	t.seconds = time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC).Unix() - unixTo2000
	b = b[10:]
	if len(b) == 0 {
		return t, true
	}
	if b[0] != 'T' && b[0] != ' ' && b[0] != 't' {
		return t, false
	}
	t.hasClock = true
	seconds, micros, rest, ok := readClock(b[1:])
	if !ok {
		return t, false
	}
	t.seconds += seconds
	t.micros = micros
	if len(rest) == 0 {
		return t, true
	}
	t.hasZone = true
	t.east, ok = readZone(rest)
	return t, ok
}

// readClock reads hh:mm[:ss[.f...]].
func readClock(b []byte) (seconds, micros int64, rest []byte, ok bool) {
	if len(b) < 5 || b[2] != ':' {
		return 0, 0, nil, false
	}
	hour, ok1 := number2(b[0:2])
	minute, ok2 := number2(b[3:5])
	second := 0
	if b = b[5:]; len(b) > 0 && b[0] == ':' {
		if len(b) < 3 {
			return 0, 0, nil, false
		}
		if second, ok = number2(b[1:3]); !ok {
			return 0, 0, nil, false
		}
		if b = b[3:]; len(b) > 0 && b[0] == '.' {
			i, unit := 1, int64(100_000)
			for i < len(b) && b[i]-'0' <= 9 {
				d := int64(b[i] - '0')
				if unit == 0 && d != 0 {
					return 0, 0, nil, false
				}
				micros += d * unit
				unit /= 10
				i++
			}
			if i == 1 {
				return 0, 0, nil, false
			}
			b = b[i:]
		}
	}
	if !ok1 || !ok2 || hour > 23 || minute > 59 || second > 59 {
		return 0, 0, nil, false
	}
	return int64(hour*3600 + minute*60 + second), micros, b, true
}

// readZone reads all of b.
func readZone(b []byte) (east int64, ok bool) {
	if len(b) == 1 && (b[0] == 'Z' || b[0] == 'z') {
		return 0, true
	}
	if len(b) < 3 || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	neg := b[0] == '-'
	b = b[1:]
	for unit := int64(3600); ; unit /= 60 {
		if len(b) < 2 || unit == 0 {
			return 0, false
		}
		n, ok := number2(b)
		if !ok || n > 59 || unit == 3600 && n > 15 {
			return 0, false
		}
		east += int64(n) * unit
		if b = b[2:]; len(b) == 0 {
			break
		}
		if b[0] == ':' {
			b = b[1:]
		} else if unit != 3600 {
			return 0, false
		}
	}
	if neg {
		east = -east
	}
	return east, true
}

func number2(b []byte) (int, bool) {
	x, y := b[0]-'0', b[1]-'0'
	return int(x)*10 + int(y), x <= 9 && y <= 9
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// fitDate takes an ISO date, and whatever PostgreSQL prints as one.
func fitDate(dst, text []byte) ([]byte, bool) {
	if t, ok := readISO(text); ok {
		if t.hasClock {
			return dst, false
		}
		return append(dst, text...), true
	}
	days, special, err := pgvalue.Date(change.Value{State: change.AsText, Data: text})
	if err != nil {
		return dst, false
	}
	return asWritten(dst, text, pgvalue.AppendDate(dst, days, special))
}

// fitTimestamp takes an ISO date and time, or a date alone for its midnight, and
// whatever PostgreSQL prints. An instant without a zone is in UTC. A wall clock takes
// no other zone than UTC: whether the clock or the instant would count is not said.
func fitTimestamp(dst, text []byte, instant bool) ([]byte, bool) {
	if t, ok := readISO(text); ok {
		if !instant && t.east != 0 {
			return dst, false
		}
		return pgvalue.AppendTimestamp(dst, (t.seconds-t.east)*1_000_000+t.micros, pgvalue.Finite, instant), true
	}
	kind := change.Timestamp
	if instant {
		kind = change.TimestampTZ
	}
	micros, special, err := pgvalue.Timestamp(change.Value{State: change.AsText, Data: text}, kind)
	if err != nil {
		return dst, false
	}
	return asWritten(dst, text, pgvalue.AppendTimestamp(dst, micros, special, instant))
}

// asWritten accepts a value read by the tolerant readers of what a server sent only
// if it prints as it was written: they take the 30th of February.
func asWritten(dst, text, printed []byte) ([]byte, bool) {
	if string(printed[len(dst):]) != string(text) {
		return dst, false
	}
	return printed, true
}

func fitTime(dst, text []byte) ([]byte, bool) {
	seconds, micros, rest, ok := readClock(text)
	if !ok || len(rest) > 0 {
		return dst, false
	}
	return pgvalue.AppendTime(dst, seconds*1_000_000+micros), true
}
