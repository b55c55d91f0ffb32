package expr

import (
	"math"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// PostgreSQL's range: from 4714-11-24 BC, dates to 5874897-12-31, timestamps to
// 294276-12-31, here in days and microseconds since 2000-01-01.
const (
	firstDay      = -2451545
	lastDay       = 2145031948
	firstMicro    = int64(firstDay) * microsPerDay
	lastMicro     = 9223371331200000000 - 1
	lastMicroDay  = lastMicro / microsPerDay
	unixDays      = pgvalue.UnixEpochDays
	unixMicros    = pgvalue.UnixEpochMicros
	maxIntervalIn = 24 // parts of an interval's text
)

// dayOf counts days from 2000-01-01; year 0 is 1 BC. ok is false for a day that
// the calendar does not have.
func dayOf(year, month, day int) (int64, bool) {
	if month < 1 || month > 12 || day < 1 || day > 31 {
		return 0, false
	}
	t := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	n := t.Unix()/86_400 - unixDays
	return n, t.Day() == day && n >= firstDay && n <= lastDay
}

// goTime turns microseconds since 2000-01-01 into the standard library's time.
func goTime(micros int64) time.Time {
	return time.Unix(floorDiv(micros, microsPerSecond)+unixDays*86_400, floorMod(micros, microsPerSecond)*1000).UTC()
}

func goDay(days int64) time.Time { return time.Unix((days+unixDays)*86_400, 0).UTC() }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

// dayOfMicros and microsOfDay change between dates and timestamps; infinities
// stay.
func dayOfMicros(n int64) int64 {
	if n == forever || n == never {
		return n
	}
	return floorDiv(n, microsPerDay)
}

func microsOfDay(n int64) (int64, error) {
	switch {
	case n == forever || n == never:
		return n, nil
	case n > lastMicroDay:
		return 0, errTimeRange
	}
	return n * microsPerDay, nil
}

func checkMicros(n int64) (int64, error) {
	if n < firstMicro || n > lastMicro {
		return 0, errTimeRange
	}
	return n, nil
}

// scan reads parts of a text off its front.
type scan struct{ b []byte }

// number reads min to max digits.
func (s *scan) number(min, max int) (n int, ok bool) {
	i := 0
	for i < len(s.b) && i < max && isDigit(s.b[i]) {
		n = n*10 + int(s.b[i]-'0')
		i++
	}
	if i < min {
		return 0, false
	}
	s.b = s.b[i:]
	return n, true
}

func (s *scan) sign(c byte) bool {
	if len(s.b) > 0 && s.b[0] == c {
		s.b = s.b[1:]
		return true
	}
	return false
}

// fraction reads digits behind a point as microseconds; what is finer is cut off.
func (s *scan) fraction(max int) (micros int64, ok bool) {
	i := 0
	for unit := int64(100_000); i < len(s.b) && i < max && isDigit(s.b[i]); i++ {
		micros += int64(s.b[i]-'0') * unit
		unit /= 10
	}
	s.b = s.b[i:]
	return micros, i > 0
}

// offset reads Z, UTC, GMT, or +hh[[:]mm[[:]ss]] as microseconds east.
func (s *scan) offset() (micros int64, ok bool) {
	switch {
	case len(s.b) >= 3 && (equalFold(s.b[:3], "utc") || equalFold(s.b[:3], "gmt")):
		s.b = s.b[3:]
		return 0, true
	case s.sign('Z'), s.sign('z'):
		return 0, true
	}
	sign := int64(1)
	if s.sign('-') {
		sign = -1
	} else if !s.sign('+') {
		return 0, false
	}
	seconds, unit := 0, 3600
	for first := true; unit > 0; first, unit = false, unit/60 {
		colon := !first && s.sign(':')
		lowest := 2
		if first {
			lowest = 1
		}
		n, ok := s.number(lowest, 2)
		if !ok {
			if first || colon {
				return 0, false
			}
			break
		}
		if !first && n > 59 {
			return 0, false
		}
		seconds += n * unit
	}
	return sign * int64(seconds) * microsPerSecond, seconds < 16*3600
}

// parseMoment reads a date or timestamp of ISO form, as Spark's casts do:
// year[-month[-day]], then for timestamps a blank or T and hour:minute[:second
// [.fraction]] and an offset; PostgreSQL's infinity and trailing BC as well. A
// date takes a timestamp's text and leaves its time out; a timestamp without
// time zone refuses an offset, which it could only ignore.
func parseMoment(b []byte, k change.Kind) (int64, error) {
	b = trimSpace(b)
	switch {
	case equalFold(b, "infinity"):
		return forever, nil
	case equalFold(b, "-infinity"):
		return never, nil
	}
	fail := errNotTimestamp
	if k == change.Date {
		fail = errNotDate
	}
	s := scan{b}
	bc := len(b) > 3 && equalFold(b[len(b)-3:], " bc")
	if bc {
		s.b = b[:len(b)-3]
	}
	year, ok := s.number(4, 7)
	month, day := 1, 1
	if ok && s.sign('-') {
		month, ok = s.number(1, 2)
		if ok && s.sign('-') {
			day, ok = s.number(1, 2)
		}
	}
	if !ok || year == 0 {
		return 0, fail
	}
	if bc {
		year = 1 - year
	}
	days, ok := dayOf(year, month, day)
	if !ok {
		return 0, fail
	}
	var clock int64
	if s.sign(' ') || s.sign('T') || s.sign('t') {
		if clock, ok = s.clock(); !ok {
			return 0, fail
		}
	}
	s.sign(' ')
	var east int64
	if len(s.b) > 0 {
		if east, ok = s.offset(); !ok || len(s.b) > 0 {
			return 0, fail
		}
		if k == change.Timestamp {
			return 0, errOffset
		}
	}
	if k == change.Date {
		return days, nil
	}
	if days > lastMicroDay {
		return 0, errTimeRange
	}
	return checkMicros(days*microsPerDay + clock - east)
}

// clock reads hour:minute[:second[.fraction]]; 24:00:00 is the day's end.
func (s *scan) clock() (int64, bool) {
	hour, ok := s.number(1, 2)
	if !ok || !s.sign(':') {
		return 0, false
	}
	minute, ok := s.number(1, 2)
	if !ok {
		return 0, false
	}
	second, micros := 0, int64(0)
	if s.sign(':') {
		if second, ok = s.number(1, 2); !ok {
			return 0, false
		}
		if s.sign('.') {
			if micros, ok = s.fraction(9); !ok {
				return 0, false
			}
		}
	}
	n := (int64(hour)*3600+int64(minute)*60+int64(second))*microsPerSecond + micros
	return n, hour <= 24 && minute <= 59 && second <= 59 && n <= microsPerDay
}

// unit is a part of an interval.
type unit struct{ months, days, micros int64 }

var intervalUnits = func() map[string]unit {
	units := map[string]unit{
		"year": {months: 12}, "quarter": {months: 3}, "month": {months: 1}, "mon": {months: 1},
		"week": {days: 7}, "day": {days: 1},
		"hour": {micros: 3600 * microsPerSecond}, "minute": {micros: 60 * microsPerSecond}, "min": {micros: 60 * microsPerSecond},
		"second": {micros: microsPerSecond}, "sec": {micros: microsPerSecond},
		"millisecond": {micros: 1000}, "microsecond": {micros: 1},
	}
	for name, u := range units {
		units[name+"s"] = u
	}
	return units
}()

// parseInterval reads "1 year -2 days 3.5 seconds" and PostgreSQL's own text,
// where the time of day comes as [-]hh:mm:ss.
func parseInterval(text string) (value, error) {
	var months, days, micros float64 // exact for everything in range that is accepted
	words := strings.Fields(strings.TrimPrefix(strings.ToLower(text), "interval "))
	if len(words) == 0 || len(words) > maxIntervalIn {
		return value{}, errNotInterval
	}
	var exact int64 // microseconds of the clock part
	for i := 0; i < len(words); i++ {
		w := words[i]
		if strings.Contains(w, ":") {
			s := scan{[]byte(strings.TrimLeft(w, "+-"))}
			n, ok := s.longClock()
			if !ok || i != len(words)-1 {
				return value{}, errNotInterval
			}
			if w[0] == '-' {
				n = -n
			}
			exact = n
			continue
		}
		d, err := parseDecimal([]byte(w))
		if err != nil || d.sp != pgvalue.Finite || d.big != nil || d.scale > 6 || i+1 == len(words) {
			return value{}, errNotInterval
		}
		i++
		u, ok := intervalUnits[words[i]]
		if !ok {
			return value{}, errIntervalUnit
		}
		if d.scale > 0 && u.micros == 0 {
			return value{}, errIntervalPart
		}
		n := float64(d.i)
		months += n * float64(u.months)
		days += n * float64(u.days)
		micros += n * float64(u.micros) / float64(pow10[d.scale])
	}
	const limit = 1 << 53
	if math.Abs(months) > math.MaxInt32 || math.Abs(days) > math.MaxInt32 || math.Abs(micros)+math.Abs(float64(exact)) > limit {
		return value{}, errTimeRange
	}
	return value{months: int32(months), days: int32(days), i: int64(math.Round(micros)) + exact}, nil
}

// longClock reads h...:mm[:ss[.f]] of an interval.
func (s *scan) longClock() (int64, bool) {
	hour, ok := s.number(1, 7)
	if !ok || !s.sign(':') {
		return 0, false
	}
	minute, ok := s.number(1, 2)
	if !ok || minute > 59 {
		return 0, false
	}
	second, micros := 0, int64(0)
	if s.sign(':') {
		if second, ok = s.number(1, 2); !ok || second > 59 {
			return 0, false
		}
		if s.sign('.') {
			if micros, ok = s.fraction(6); !ok {
				return 0, false
			}
		}
	}
	return (int64(hour)*3600+int64(minute)*60+int64(second))*microsPerSecond + micros, len(s.b) == 0
}

// compareIntervals takes a month for 30 days and a day for 24 hours, as
// PostgreSQL does.
func compareIntervals(a, b *value) int {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return sign(int64(a.sp) - int64(b.sp))
	}
	da := int64(a.months)*30 + int64(a.days) + floorDiv(a.i, microsPerDay)
	db := int64(b.months)*30 + int64(b.days) + floorDiv(b.i, microsPerDay)
	if da != db {
		return sign(da - db)
	}
	return sign(floorMod(a.i, microsPerDay) - floorMod(b.i, microsPerDay))
}

func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

// addMonths keeps the day of the month, or takes the month's last one.
func addMonths(days int64, months int) (int64, error) {
	y, m, d := goDay(days).Date()
	total := y*12 + int(m) - 1 + months
	y, m = int(floorDiv(int64(total), 12)), time.Month(floorMod(int64(total), 12)+1)
	last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
	n, ok := dayOf(y, int(m), min(d, last))
	if !ok {
		return 0, errTimeRange
	}
	return n, nil
}

// shiftDay adds an interval without a time of day to a date.
func shiftDay(days int64, iv value) (int64, error) {
	if days == forever || days == never {
		return days, nil
	}
	if iv.months != 0 {
		var err error
		if days, err = addMonths(days, int(iv.months)); err != nil {
			return 0, err
		}
	}
	days += int64(iv.days)
	if days < firstDay || days > lastDay {
		return 0, errTimeRange
	}
	return days, nil
}

// shiftMicros adds an interval to a timestamp: months, then days, then the time.
func shiftMicros(micros int64, iv value) (int64, error) {
	switch {
	case iv.sp != pgvalue.Finite:
		return 0, errTimeRange
	case micros == forever || micros == never:
		return micros, nil
	}
	day, clock := floorDiv(micros, microsPerDay), floorMod(micros, microsPerDay)
	day, err := shiftDay(day, iv)
	if err != nil || day > lastMicroDay {
		return 0, errTimeRange
	}
	n := day*microsPerDay + clock
	if sum := n + iv.i; (iv.i < 0) == (sum < n) {
		return checkMicros(sum)
	}
	return 0, errTimeRange
}

func negInterval(v *value) (value, error) {
	if v.months == math.MinInt32 || v.days == math.MinInt32 || v.i == math.MinInt64 {
		return value{}, errTimeRange
	}
	return value{months: -v.months, days: -v.days, i: -v.i, sp: -v.sp}, nil
}

func addIntervals(a, b *value) (value, error) {
	months, days, micros := int64(a.months)+int64(b.months), int64(a.days)+int64(b.days), a.i+b.i
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite || months != int64(int32(months)) || days != int64(int32(days)) ||
		(a.i < 0) == (b.i < 0) && (micros < 0) != (a.i < 0) {
		return value{}, errTimeRange
	}
	return value{months: int32(months), days: int32(days), i: micros}, nil
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && asciiSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && asciiSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func asciiSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// parseClockText reads a time of day for a comparison with a time column.
func parseClockText(b []byte) (int64, error) {
	s := scan{trimSpace(b)}
	n, ok := s.clock()
	if !ok || len(s.b) > 0 {
		return 0, errNotTime
	}
	return n, nil
}

// parseUUID returns the canonical text of a uuid written with or without
// hyphens and braces; f holds it.
func parseUUID(f *frame, b []byte) ([]byte, error) {
	b = trimSpace(b)
	if len(b) > 2 && b[0] == '{' && b[len(b)-1] == '}' {
		b = b[1 : len(b)-1]
	}
	start := len(f.buf)
	for i, digits := 0, 0; i < len(b); i++ {
		c := b[i]
		switch {
		case c == '-' && digits%4 == 0 && i > 0 && b[i-1] != '-':
			continue
		case c >= 'A' && c <= 'F':
			c |= 0x20
		case !isDigit(c) && (c < 'a' || c > 'f'):
			return nil, errNotUUID
		}
		if digits == 8 || digits == 12 || digits == 16 || digits == 20 {
			f.buf = append(f.buf, '-')
		}
		f.buf = append(f.buf, c)
		digits++
	}
	if len(f.buf)-start != 36 || b[len(b)-1] == '-' {
		return nil, errNotUUID
	}
	return f.since(start), nil
}

// parseInt reads an integer with a sign and blanks around it.
func parseInt(b []byte) (int64, error) {
	b = trimSpace(b)
	if n := len(b); n > 0 && n <= 19 && b[0] != '+' {
		if v, err := readInt(change.Int64, b); err == nil {
			return v, nil
		}
	}
	digits := b
	if len(digits) > 0 && (digits[0] == '+' || digits[0] == '-') {
		digits = digits[1:]
	}
	if len(digits) == 0 {
		return 0, errNotInt
	}
	for _, c := range digits {
		if !isDigit(c) {
			return 0, errNotInt
		}
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return 0, errIntRange
	}
	return n, nil
}
