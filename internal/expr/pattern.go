package expr

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// pattern is a format of dates and times in Java's letters, as Spark uses it. It
// prints and reads; times without a zone are UTC.
type pattern []field

// field is one letter of a pattern, repeated width times, or a literal.
type field struct {
	letter  byte // 0: literal
	width   int
	literal string
}

// letters and the greatest width of each.
var letters = map[byte]int{
	'y': 6, 'u': 6, 'M': 4, 'L': 4, 'd': 2, 'D': 3, 'H': 2, 'h': 2, 'K': 2, 'k': 2, 'm': 2, 's': 2, 'S': 9, 'a': 1,
	'E': 4, 'z': 3, 'Z': 3, 'X': 3, 'x': 3, 'V': 2,
}

func newPattern(format string) (pattern, error) {
	var p pattern
	for i := 0; i < len(format); {
		c := format[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			n := 1
			for i+n < len(format) && format[i+n] == c {
				n++
			}
			limit, ok := letters[c]
			if !ok {
				return nil, fmt.Errorf("the format's letter %c is not known (a text in a format stands in single quotes)", c)
			}
			if n > limit {
				return nil, fmt.Errorf("the format has more than %d times %c", limit, c)
			}
			p = append(p, field{letter: c, width: n})
			i += n
		case c == '\'':
			text, n, err := quotedPart(format[i:])
			if err != nil {
				return nil, err
			}
			p = append(p, field{literal: text})
			i += n
		case c == '[' || c == ']' || c == '{' || c == '}' || c == '#':
			return nil, fmt.Errorf("the format's sign %c (optional parts) is not supported: combine two formats with coalesce and try_to_timestamp", c)
		default:
			p = append(p, field{literal: string(c)})
			i++
		}
	}
	if len(p) == 0 {
		return nil, fmt.Errorf("the format is empty")
	}
	return p, nil
}

// quotedPart reads 'text' off the front of s; two quotes are one, also alone.
func quotedPart(s string) (text string, n int, err error) {
	var b strings.Builder
	if strings.HasPrefix(s, "''") {
		return "'", 2, nil
	}
	for i := 1; i < len(s); i++ {
		if s[i] != '\'' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '\'' {
			b.WriteByte('\'')
			i++
			continue
		}
		return b.String(), i + 1, nil
	}
	return "", 0, fmt.Errorf("a quote in the format is not closed")
}

func padded0(dst []byte, n, width int) []byte {
	if n < 0 {
		dst, n = append(dst, '-'), -n
	}
	var buf [20]byte
	s := strconv.AppendInt(buf[:0], int64(n), 10)
	for i := len(s); i < width; i++ {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}

func (p pattern) format(dst []byte, t time.Time) []byte {
	for _, f := range p {
		switch f.letter {
		case 0:
			dst = append(dst, f.literal...)
		case 'y', 'u':
			year := t.Year()
			if f.letter == 'y' && year < 1 {
				year = 1 - year // of the era before
			}
			if f.width == 2 {
				year = int(floorMod(int64(year), 100))
			}
			dst = padded0(dst, year, f.width)
		case 'M', 'L':
			switch f.width {
			case 3:
				dst = append(dst, t.Month().String()[:3]...)
			case 4:
				dst = append(dst, t.Month().String()...)
			default:
				dst = padded0(dst, int(t.Month()), f.width)
			}
		case 'E':
			name := t.Weekday().String()
			if f.width < 4 {
				name = name[:3]
			}
			dst = append(dst, name...)
		case 'a':
			dst = append(dst, "AMPM"[t.Hour()/12*2:][:2]...)
		case 'S':
			digits := padded0(nil, t.Nanosecond(), 9)
			dst = append(dst, digits[:f.width]...)
		case 'z', 'V':
			dst = append(dst, "UTC"...)
		case 'Z':
			dst = append(dst, "+0000"...)
		case 'X':
			dst = append(dst, 'Z')
		case 'x':
			dst = append(dst, [...]string{"+00", "+0000", "+00:00"}[f.width-1]...)
		default:
			dst = padded0(dst, f.number(t), f.width)
		}
	}
	return dst
}

// number is the value of a letter that prints as a plain number.
func (f field) number(t time.Time) int {
	switch f.letter {
	case 'd':
		return t.Day()
	case 'D':
		return t.YearDay()
	case 'H':
		return t.Hour()
	case 'h':
		return (t.Hour()+11)%12 + 1
	case 'K':
		return t.Hour() % 12
	case 'k':
		return (t.Hour()+23)%24 + 1
	case 'm':
		return t.Minute()
	}
	return t.Second()
}

// parsed are the numbers that a text gave; what it did not give is that of
// 1970-01-01 00:00:00 UTC.
type parsed struct {
	year, month, day, yearDay  int
	hour, minute, second       int
	half                       int // 12-hour clock
	hasHalf, afternoon, hasDay bool
	micros, east               int64
}

// parse reads the whole of b. Numbers have exactly as many digits as letters, of
// a single letter any number, of SSS at least one; names and AM, PM are English,
// in any case.
func (p pattern) parse(b []byte) (int64, error) {
	s := scan{b}
	v := parsed{year: 1970, month: 1, day: 1}
	for i, f := range p {
		alone := i+1 == len(p) || p[i+1].letter == 0
		if !f.read(&s, &v, alone) {
			return 0, errPattern
		}
	}
	if len(s.b) > 0 {
		return 0, errPattern
	}
	if v.hasHalf {
		v.hour = v.half % 12
		if v.afternoon {
			v.hour += 12
		}
	}
	if v.yearDay > 0 && !v.hasDay {
		first, ok := dayOf(v.year, 1, 1)
		if !ok {
			return 0, errPattern
		}
		day := goDay(first + int64(v.yearDay) - 1)
		if day.Year() != v.year {
			return 0, errPattern
		}
		v.month, v.day = int(day.Month()), day.Day()
	}
	days, ok := dayOf(v.year, v.month, v.day)
	if !ok || v.hour > 23 || v.minute > 59 || v.second > 59 || days > lastMicroDay {
		return 0, errPattern
	}
	n := days*microsPerDay + (int64(v.hour)*3600+int64(v.minute)*60+int64(v.second))*microsPerSecond + v.micros - v.east
	return checkMicros(n)
}

// read takes one field off s; alone says that no other number follows directly.
func (f field) read(s *scan, v *parsed, alone bool) bool {
	low, high := f.width, f.width
	if f.width == 1 {
		high = 2
		if !alone {
			high = 1
		}
	}
	number := func(into *int) bool {
		n, ok := s.number(low, high)
		*into = n
		return ok
	}
	var ok bool
	switch f.letter {
	case 0:
		if ok = bytes.HasPrefix(s.b, []byte(f.literal)); ok {
			s.b = s.b[len(f.literal):]
		}
	case 'y', 'u':
		switch {
		case f.width == 2:
			ok = number(&v.year)
			v.year += 2000
		case f.width == 1:
			high = 6
			ok = number(&v.year)
		default:
			ok = number(&v.year)
		}
	case 'M', 'L':
		v.hasDay = true
		if f.width > 2 {
			v.month, ok = readName(s, f.width == 4, 12, func(i int) string { return time.Month(i).String() })
		} else {
			ok = number(&v.month)
		}
	case 'd':
		v.hasDay = true
		ok = number(&v.day)
	case 'D':
		high = 3
		ok = number(&v.yearDay) && v.yearDay > 0
	case 'H', 'k':
		ok = number(&v.hour)
		if f.letter == 'k' {
			v.hour %= 24
		}
	case 'h', 'K':
		ok = number(&v.half) && v.half <= 12 && (v.half > 0 || f.letter == 'K')
		v.hasHalf = true
	case 'm':
		ok = number(&v.minute)
	case 's':
		ok = number(&v.second)
	case 'S':
		v.micros, ok = s.fraction(f.width)
	case 'a':
		if len(s.b) >= 2 {
			ok = equalFold(s.b[:2], "am") || equalFold(s.b[:2], "pm")
			v.afternoon = s.b[0]|0x20 == 'p'
			s.b = s.b[2:]
		}
	case 'E':
		_, ok = readName(s, f.width == 4, 7, func(i int) string { return time.Weekday(i - 1).String() })
	default:
		v.east, ok = s.offset()
	}
	return ok
}

// readName reads one of count names, or of their first three letters, and gives
// its number from 1 on.
func readName(s *scan, whole bool, count int, name func(int) string) (int, bool) {
	for i := 1; i <= count; i++ {
		word := strings.ToLower(name(i))
		if !whole {
			word = word[:3]
		}
		if len(s.b) >= len(word) && equalFold(s.b[:len(word)], word) {
			s.b = s.b[len(word):]
			return i, true
		}
	}
	return 0, false
}
