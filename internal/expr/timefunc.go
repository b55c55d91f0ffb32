package expr

import (
	"strings"
	"time"

	"tailrace/internal/change"
)

// moment makes an argument a date or a timestamp; a text is cast to the wanted
// kind for each row.
func (c *compiler) moment(n *node, e expr, textIs change.Kind) (expr, error) {
	switch {
	case e.untyped, e.typ.Kind == change.Text:
		return c.coerce(e, typeOf(textIs))
	case isMoment(e.typ.Kind):
		e.typ = typeOf(e.typ.Kind)
		return e, nil
	}
	return expr{}, c.fail(e.pos, "%s expects a date or a timestamp, this is %s", n.word, e.typ.Name)
}

// day makes an argument a date.
func (c *compiler) day(n *node, e expr) (expr, error) {
	e, err := c.moment(n, e, change.Date)
	if err != nil {
		return expr{}, err
	}
	return c.coerce(e, typeOf(change.Date))
}

// instant makes an argument a timestamp, with or without time zone.
func (c *compiler) instant(n *node, e expr) (expr, error) {
	e, err := c.moment(n, e, change.TimestampTZ)
	if err != nil || e.typ.Kind != change.Date {
		return e, err
	}
	return c.coerce(e, typeOf(change.TimestampTZ))
}

// finitely guards a function whose argument must not be infinite.
func finitely(run func(micros int64) (value, error)) func(*frame, value) (value, error) {
	return func(_ *frame, v value) (value, error) {
		if v.i == forever || v.i == never {
			return value{}, errInfinite
		}
		return run(v.i)
	}
}

// buildToMoment builds to_date, to_timestamp and their try_ forms, by ISO form or
// by a pattern.
func buildToMoment(c *compiler, n *node, args []expr) (expr, error) {
	try := strings.HasPrefix(n.word, "try_")
	to := typeOf(change.TimestampTZ)
	if strings.HasSuffix(n.word, "date") {
		to = typeOf(change.Date)
	}
	e := args[0]
	if e.untyped {
		return constant(n.pos, to, null), nil
	}
	convert := castTo(e.typ, to)
	if len(args) == 2 {
		format, err := c.literalText(n, args[1], "format")
		if err != nil {
			return expr{}, err
		}
		p, err := newPattern(format)
		if err != nil {
			return expr{}, c.fail(args[1].pos, "%s: %v", n.word, err)
		}
		if e, err = c.textual(e); err != nil {
			return expr{}, err
		}
		convert = func(_ *frame, v value) (value, error) {
			micros, err := p.parse(v.b)
			if to.Kind == change.Date {
				micros = dayOfMicros(micros)
			}
			return value{i: micros}, err
		}
	}
	if convert == nil {
		return expr{}, c.fail(e.pos, "%s expects text, a date or a timestamp, this is %s", n.word, e.typ.Name)
	}
	e.quoted = e.quoted && !try
	out, err := c.convert(c.site(n, n.word), e, to, convert, try)
	out.pos = n.pos
	return out, err
}

func buildUnixTimestamp(c *compiler, n *node, args []expr) (expr, error) {
	e := args[0]
	var err error
	if len(args) == 2 && e.typ.Kind == change.Text {
		e, err = buildToMoment(c, &node{kind: isCall, word: "to_timestamp", pos: n.pos}, args)
	} else {
		e, err = c.instant(n, e)
	}
	if err != nil {
		return expr{}, err
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Int64), e, func(_ *frame, v value) (value, error) {
		s, err := unixSeconds(v.i)
		return value{i: s}, err
	}), nil
}

// buildUnixOf counts units of so many microseconds since 1970, rounded down.
func buildUnixOf(unit int64) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) {
		e, err := c.instant(n, args[0])
		if err != nil {
			return expr{}, err
		}
		return strict1(c.site(n, n.word), n.pos, typeOf(change.Int64), e, finitely(func(micros int64) (value, error) {
			if unit == 1 {
				if micros > forever-unixMicros {
					return value{}, errIntRange
				}
				return value{i: micros + unixMicros}, nil
			}
			return value{i: floorDiv(micros, unit) + unixMicros/unit}, nil
		})), nil
	}
}

// buildTimestampOf makes a timestamp of a count since 1970 in units of 10^shift
// microseconds.
func buildTimestampOf(shift int32) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) {
		e, err := c.numeric(n, args[0])
		if err != nil {
			return expr{}, err
		}
		if isFloat(e.typ.Kind) {
			if e, err = c.coerce(e, typeOf(change.Numeric)); err != nil {
				return expr{}, err
			}
		}
		return strict1(c.site(n, n.word), n.pos, typeOf(change.TimestampTZ), e, func(_ *frame, v value) (value, error) {
			return fromUnix(&v, shift)
		}), nil
	}
}

func buildFromUnixtime(c *compiler, n *node, args []expr) (expr, error) {
	at, err := buildTimestampOf(6)(c, n, args[:1])
	if err != nil {
		return expr{}, err
	}
	format := constant(n.pos, typeOf(change.Text), value{b: []byte("yyyy-MM-dd HH:mm:ss")})
	if len(args) == 2 {
		format = args[1]
	}
	return buildDateFormat(c, n, []expr{at, format})
}

func buildDateFormat(c *compiler, n *node, args []expr) (expr, error) {
	e, err := c.instant(n, args[0])
	if err != nil {
		return expr{}, err
	}
	format, err := c.literalText(n, args[1], "format")
	if err != nil {
		return expr{}, err
	}
	p, err := newPattern(format)
	if err != nil {
		return expr{}, c.fail(args[1].pos, "%s: %v", n.word, err)
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Text), e, func(f *frame, v value) (value, error) {
		if v.i == forever || v.i == never {
			return value{}, errInfinite
		}
		start := len(f.buf)
		f.buf = p.format(f.buf, goTime(v.i))
		return value{b: f.since(start)}, nil
	}), nil
}

// truncations cut a time down to a unit; weeks begin on Monday.
var truncations = map[string]func(t time.Time) time.Time{
	"MICROSECOND": func(t time.Time) time.Time { return t },
	"MILLISECOND": func(t time.Time) time.Time { return t.Truncate(time.Millisecond) },
	"SECOND":      func(t time.Time) time.Time { return t.Truncate(time.Second) },
	"MINUTE":      func(t time.Time) time.Time { return clock(t, t.Hour(), t.Minute()) },
	"HOUR":        func(t time.Time) time.Time { return clock(t, t.Hour(), 0) },
	"DAY":         func(t time.Time) time.Time { return clock(t, 0, 0) },
	"WEEK":        func(t time.Time) time.Time { return clock(t, 0, 0).AddDate(0, 0, -(int(t.Weekday())+6)%7) },
	"MONTH":       func(t time.Time) time.Time { return firstOf(t.Year(), t.Month()) },
	"QUARTER":     func(t time.Time) time.Time { return firstOf(t.Year(), (t.Month()-1)/3*3+1) },
	"YEAR":        func(t time.Time) time.Time { return firstOf(t.Year(), 1) },
}

func clock(t time.Time, hour, minute int) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), hour, minute, 0, 0, time.UTC)
}

func firstOf(year int, month time.Month) time.Time {
	return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
}

// unitNames are Spark's other spellings.
var unitNames = map[string]string{"YYYY": "YEAR", "YY": "YEAR", "MM": "MONTH", "MON": "MONTH", "DD": "DAY"}

func buildDateTrunc(c *compiler, n *node, args []expr) (expr, error) {
	name, err := c.literalText(n, args[0], "unit")
	if err != nil {
		return expr{}, err
	}
	unit := strings.ToUpper(name)
	if other, ok := unitNames[unit]; ok {
		unit = other
	}
	truncate, ok := truncations[unit]
	if !ok {
		return expr{}, c.fail(args[0].pos, "date_trunc: unknown unit; possible are year, quarter, month, week, day, hour, minute, second, millisecond, microsecond")
	}
	e, err := c.instant(n, args[1])
	if err != nil {
		return expr{}, err
	}
	return strict1(c.site(n, n.word), n.pos, e.typ, e, func(_ *frame, v value) (value, error) {
		if v.i == forever || v.i == never {
			return v, nil
		}
		m, err := microsOf(truncate(goTime(v.i)))
		return value{i: m}, err
	}), nil
}

// microsOf is the opposite of goTime.
func microsOf(t time.Time) (int64, error) {
	seconds := t.Unix() - unixDays*86_400
	if seconds < firstMicro/microsPerSecond || seconds > lastMicro/microsPerSecond {
		return 0, errTimeRange
	}
	return seconds*microsPerSecond + int64(t.Nanosecond()/1000), nil
}

func buildDateAdd(c *compiler, n *node, args []expr) (expr, error) {
	e, err := c.day(n, args[0])
	if err != nil {
		return expr{}, err
	}
	days, err := c.integral(n, args[1])
	if err != nil {
		return expr{}, err
	}
	minus := n.word == "date_sub"
	return strict2(c.site(n, n.word), n.pos, typeOf(change.Date), e, days, func(_ *frame, a, b value) (value, error) {
		if minus {
			b.i = -b.i
		}
		return addDays(a.i, b.i)
	}), nil
}

func buildDateDiff(c *compiler, n *node, args []expr) (expr, error) {
	end, err := c.day(n, args[0])
	if err != nil {
		return expr{}, err
	}
	start, err := c.day(n, args[1])
	if err != nil {
		return expr{}, err
	}
	return strict2(c.site(n, n.word), n.pos, typeOf(change.Int32), end, start, func(_ *frame, a, b value) (value, error) {
		if a.i == forever || a.i == never || b.i == forever || b.i == never {
			return value{}, errInfinite
		}
		return fits(a.i-b.i, change.Int32)
	}), nil
}

// fields of extract and of the functions of the same names. Years before 1 count
// -1, -2, ...; days of the week from Sunday = 1, of the ISO week from Monday = 1.
var fields = map[string]func(t time.Time) int{
	"YEAR": func(t time.Time) int {
		if y := t.Year(); y > 0 {
			return y
		}
		return t.Year() - 1
	},
	"QUARTER":       func(t time.Time) int { return int(t.Month()-1)/3 + 1 },
	"MONTH":         func(t time.Time) int { return int(t.Month()) },
	"WEEK":          func(t time.Time) int { _, w := t.ISOWeek(); return w },
	"DAY":           time.Time.Day,
	"DAYOFWEEK":     func(t time.Time) int { return int(t.Weekday()) + 1 },
	"DAYOFWEEK_ISO": func(t time.Time) int { return (int(t.Weekday())+6)%7 + 1 },
	"DOY":           time.Time.YearDay,
	"HOUR":          time.Time.Hour,
	"MINUTE":        time.Time.Minute,
	"SECOND":        time.Time.Second,
}

var fieldNames = map[string]string{"DAYOFMONTH": "DAY", "DAYOFYEAR": "DOY", "WEEKOFYEAR": "WEEK", "YEARS": "YEAR", "MONTHS": "MONTH", "DAYS": "DAY", "HOURS": "HOUR", "MINUTES": "MINUTE", "SECONDS": "SECOND"}

func buildExtract(c *compiler, n *node, args []expr) (expr, error) {
	name := strings.ToUpper(n.word)
	if n.word == "extract" {
		name = n.field
	}
	if other, ok := fieldNames[name]; ok {
		name = other
	}
	field, ok := fields[name]
	if !ok {
		if name == "DOW" {
			return expr{}, c.fail(n.pos, "extract: DOW counts from Sunday = 1 in Spark and Sunday = 0 in PostgreSQL; write DAYOFWEEK (Sunday = 1) or DAYOFWEEK_ISO (Monday = 1)")
		}
		return expr{}, c.fail(n.pos, "extract: unknown field %s; possible are YEAR, QUARTER, MONTH, WEEK, DAY, DAYOFWEEK, DAYOFWEEK_ISO, DOY, HOUR, MINUTE, SECOND", name)
	}
	e, err := c.instant(n, args[0])
	if err != nil {
		return expr{}, err
	}
	if n.word == "extract" && name == "SECOND" {
		return strict1(c.site(n, n.word), n.pos, typeOf(change.Numeric), e, finitely(func(micros int64) (value, error) {
			return value{i: floorMod(micros, 60*microsPerSecond), scale: 6}, nil
		})), nil
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Int32), e, finitely(func(micros int64) (value, error) {
		return value{i: int64(field(goTime(micros)))}, nil
	})), nil
}
