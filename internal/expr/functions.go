package expr

import (
	"maps"
	"slices"

	"tailrace/internal/change"
)

// function is a function by its canonical name. max below 0 means any number of
// arguments. build checks the types of the arguments and makes the closure.
type function struct {
	min, max int
	build    func(c *compiler, n *node, args []expr) (expr, error)
}

// aliases are other names of functions.
var aliases = map[string]string{
	"ifnull": "coalesce", "nvl": "coalesce", "iff": "if", "ucase": "upper", "lcase": "lower",
	"char_length": "length", "character_length": "length", "len": "length", "substr": "substring",
	"startswith": "starts_with", "endswith": "ends_with", "ceiling": "ceil", "power": "pow", "signum": "sign",
	"day": "dayofmonth", "to_unix_timestamp": "unix_timestamp", "date_diff": "datediff", "dateadd": "date_add", "sha1": "sha", "locate": "locate", "bool": "boolean",
	"integer": "int", "long": "bigint", "text": "string", "numeric": "decimal", "real": "float",
}

// refused functions would give an event another outcome each time it is applied,
// or at another place.
var refused = map[string]string{}

func init() {
	const moves = "an event's outcome must not depend on when it is applied; use a column such as _commit_time"
	for _, name := range []string{"current_timestamp", "now", "current_date", "localtimestamp", "curdate", "getdate", "clock_timestamp"} {
		refused[name] = moves
	}
	const chance = "an event that is applied again must have the same outcome"
	for _, name := range []string{"rand", "random", "randn", "uuid", "gen_random_uuid", "shuffle", "monotonically_increasing_id"} {
		refused[name] = chance
	}
	const who = "an event's outcome must not depend on who applies it, or where"
	for _, name := range []string{"current_user", "user", "session_user", "current_database", "current_schema", "current_catalog", "current_timezone", "version"} {
		refused[name] = who
	}
	for _, name := range []string{"sum", "count", "avg", "min", "max", "first", "last", "any_value", "row_number", "rank", "lag", "lead"} {
		refused[name] = "an expression sees one row"
	}
}

// functions by name.
var functions = map[string]function{
	"coalesce": {1, -1, buildCoalesce},
	"nullif":   {2, 2, buildNullIf},
	"if":       {3, 3, buildIf},
	"greatest": {2, -1, extreme(1)},
	"least":    {2, -1, extreme(-1)},

	"boolean": {1, 1, castFunction(change.Bool)}, "tinyint": {1, 1, castFunction(change.Int16)},
	"smallint": {1, 1, castFunction(change.Int16)}, "int": {1, 1, castFunction(change.Int32)},
	"bigint": {1, 1, castFunction(change.Int64)}, "float": {1, 1, castFunction(change.Float32)},
	"double": {1, 1, castFunction(change.Float64)}, "decimal": {1, 1, castFunction(change.Numeric)},
	"string": {1, 1, castFunction(change.Text)}, "binary": {1, 1, castFunction(change.Bytes)},
	"date": {1, 1, castFunction(change.Date)}, "timestamp": {1, 1, castFunction(change.TimestampTZ)},

	"upper": {1, 1, textFunction(upper)}, "lower": {1, 1, textFunction(lower)}, "reverse": {1, 1, textFunction(reverse)},
	"length": {1, 1, buildLength}, "substring": {2, 3, buildSubstring}, "left": {2, 2, buildLeft}, "right": {2, 2, buildRight},
	"trim": {1, 2, buildTrim}, "btrim": {1, 2, buildTrim}, "ltrim": {1, 2, buildTrim}, "rtrim": {1, 2, buildTrim},
	"concat": {1, -1, buildConcat}, "concat_ws": {1, -1, buildConcatWS},
	"replace": {2, 3, buildReplace}, "split_part": {3, 3, buildSplitPart}, "lpad": {2, 3, buildPad}, "rpad": {2, 3, buildPad},
	"position": {2, 3, buildPosition}, "locate": {2, 3, buildPosition}, "instr": {2, 2, buildPosition},
	"starts_with": {2, 2, textTest(startsWith)}, "ends_with": {2, 2, textTest(endsWith)}, "contains": {2, 2, textTest(contains)},
	"regexp_like": {2, 2, buildRegexpLike}, "regexp_replace": {3, 3, buildRegexpReplace}, "regexp_extract": {2, 3, buildRegexpExtract},
	"md5": {1, 1, buildMD5}, "sha": {1, 1, buildSHA1}, "sha2": {2, 2, buildSHA2}, "hex": {1, 1, buildHex},

	"abs": {1, 1, buildAbs}, "ceil": {1, 1, buildCeilFloor}, "floor": {1, 1, buildCeilFloor}, "round": {1, 2, buildRound},
	"mod": {2, 2, buildMod}, "pow": {2, 2, buildPow}, "sqrt": {1, 1, buildSqrt}, "sign": {1, 1, buildSign},

	"to_date": {1, 2, buildToMoment}, "to_timestamp": {1, 2, buildToMoment},
	"try_to_date": {1, 2, buildToMoment}, "try_to_timestamp": {1, 2, buildToMoment},
	"date_trunc": {2, 2, buildDateTrunc}, "date_add": {2, 2, buildDateAdd}, "date_sub": {2, 2, buildDateAdd}, "datediff": {2, 2, buildDateDiff},
	"extract": {1, 1, buildExtract}, "year": {1, 1, buildExtract}, "quarter": {1, 1, buildExtract}, "month": {1, 1, buildExtract},
	"weekofyear": {1, 1, buildExtract}, "dayofmonth": {1, 1, buildExtract}, "dayofweek": {1, 1, buildExtract}, "dayofyear": {1, 1, buildExtract},
	"hour": {1, 1, buildExtract}, "minute": {1, 1, buildExtract}, "second": {1, 1, buildExtract},
	"unix_timestamp": {1, 2, buildUnixTimestamp}, "from_unixtime": {1, 2, buildFromUnixtime},
	"timestamp_seconds": {1, 1, buildTimestampOf(6)}, "timestamp_millis": {1, 1, buildTimestampOf(3)}, "timestamp_micros": {1, 1, buildTimestampOf(0)},
	"unix_seconds": {1, 1, buildUnixOf(microsPerSecond)}, "unix_millis": {1, 1, buildUnixOf(1000)}, "unix_micros": {1, 1, buildUnixOf(1)},
	"date_format": {2, 2, buildDateFormat},

	"get_json_object": {2, 2, buildGetJSONObject},
}

func (c *compiler) call(n *node) (expr, error) {
	if why, ok := refused[n.word]; ok {
		return expr{}, c.fail(n.pos, "%s is refused: %s", n.word, why)
	}
	if n.word == "unix_timestamp" && len(n.kids) == 0 {
		return expr{}, c.fail(n.pos, "unix_timestamp without an argument is refused: %s", refused["now"])
	}
	fn, ok := functions[n.word]
	if !ok {
		names := append(slices.Collect(maps.Keys(functions)), slices.Collect(maps.Keys(aliases))...)
		slices.Sort(names)
		return expr{}, c.fail(n.pos, "unknown function %s%s", n.word, suggest(n.word, names))
	}
	if got := len(n.kids); got < fn.min || fn.max >= 0 && got > fn.max {
		return expr{}, c.fail(n.pos, "%s takes %s, here are %d", n.word, arity(fn.min, fn.max), got)
	}
	args, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	return fn.build(c, n, args)
}

func arity(low, high int) string {
	word := map[int]string{0: "no", 1: "one", 2: "two", 3: "three"}
	noun := " arguments"
	if low == 1 && high == 1 {
		noun = " argument"
	}
	switch {
	case high < 0:
		return "at least " + word[low] + noun
	case low == high:
		return word[low] + noun
	}
	return word[low] + " or " + word[high] + noun
}

func castFunction(k change.Kind) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) { return c.castExpr(n, args[0], typeOf(k), false) }
}

func buildCoalesce(c *compiler, n *node, args []expr) (expr, error) {
	args, t, err := c.common(n, args)
	if err != nil {
		return expr{}, err
	}
	return result(n.pos, t, func(f *frame) (value, error) {
		for i := range args {
			v, err := args[i].eval(f)
			if err != nil || !v.null {
				return v, err
			}
		}
		return null, nil
	}), nil
}

func buildNullIf(c *compiler, n *node, args []expr) (expr, error) {
	equal, err := c.compare(n, outcomes["="], args[0], args[1])
	if err != nil {
		return expr{}, err
	}
	return choose(n.pos, args[0].typ, []expr{equal}, []expr{constant(n.pos, args[0].typ, null), args[0]}), nil
}

func buildIf(c *compiler, n *node, args []expr) (expr, error) {
	test, err := c.boolean(args[0])
	if err != nil {
		return expr{}, err
	}
	results, t, err := c.common(n, args[1:])
	if err != nil {
		return expr{}, err
	}
	return choose(n.pos, t, []expr{test}, results), nil
}

// extreme builds greatest and least, which pass over NULLs.
func extreme(want int) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) {
		args, t, err := c.common(n, args)
		if err != nil {
			return expr{}, err
		}
		by := comparers[t.Kind]
		if by == incomparable || t.Kind == change.Enum {
			return expr{}, c.fail(n.pos, "%s: values of type %s have no order here", n.word, t.Name)
		}
		return result(n.pos, t, func(f *frame) (value, error) {
			best := null
			for i := range args {
				v, err := args[i].eval(f)
				switch {
				case err != nil:
					return value{}, err
				case v.null:
				case best.null || by.order(&v, &best) == want:
					best = v
				}
			}
			return best, nil
		}), nil
	}
}

// textual makes an argument a text: every type has one, but bytes have to be cast
// on purpose.
func (c *compiler) textual(e expr) (expr, error) {
	switch e.typ.Kind {
	case change.Text:
		return e, nil
	case change.Bytes:
		return expr{}, c.fail(e.pos, "expected text, this is bytea: CAST it to text, or use hex")
	}
	return c.convert(c.site(&node{pos: e.pos}, "as text"), e, typeOf(change.Text), plainText(e.typ), false)
}

func (c *compiler) textuals(args []expr) ([]expr, error) {
	out := make([]expr, len(args))
	for i := range args {
		var err error
		if out[i], err = c.textual(args[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// integral makes an argument an integer; texts and numbers with decimals are no
// counts.
func (c *compiler) integral(n *node, e expr) (expr, error) {
	if e.untyped {
		return constant(e.pos, typeOf(change.Int64), null), nil
	}
	if !isInteger(e.typ.Kind) {
		return expr{}, c.fail(e.pos, "%s expects an integer here, this is %s", n.word, e.typ.Name)
	}
	return e, nil
}

// literalText returns the text of an argument that has to be known.
func (c *compiler) literalText(n *node, e expr, what string) (string, error) {
	if e.known == nil || e.known.null || !isText(e.typ.Kind) {
		return "", c.fail(e.pos, "%s: the %s must be a string literal", n.word, what)
	}
	return string(e.known.b), nil
}

func (c *compiler) literalInt(n *node, e expr, low, high int64, what string) (int, error) {
	if e.known == nil || e.known.null || !isInteger(e.typ.Kind) || e.known.i < low || e.known.i > high {
		return 0, c.fail(e.pos, "%s: the %s must be a literal from %d to %d", n.word, what, low, high)
	}
	return int(e.known.i), nil
}

func (c *compiler) concat(n *node) (expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	return buildConcat(c, n, kids)
}

func buildConcat(c *compiler, n *node, args []expr) (expr, error) {
	t := typeOf(change.Text)
	isBytes := func(e expr) bool { return e.typ.Kind == change.Bytes }
	if slices.ContainsFunc(args, isBytes) && !slices.ContainsFunc(args, func(e expr) bool { return !isBytes(e) && !e.untyped }) {
		t = typeOf(change.Bytes)
	} else {
		var err error
		if args, err = c.textuals(args); err != nil {
			return expr{}, err
		}
	}
	what := n.word
	if n.kind == isConcat {
		what = "||"
	}
	at := c.site(n, what)
	return result(n.pos, t, func(f *frame) (value, error) {
		return join(f, at, args, nil, true)
	}), nil
}

func buildConcatWS(c *compiler, n *node, args []expr) (expr, error) {
	args, err := c.textuals(args)
	if err != nil {
		return expr{}, err
	}
	at := c.site(n, n.word)
	separator := args[0].eval
	return result(n.pos, typeOf(change.Text), func(f *frame) (value, error) {
		s, err := separator(f)
		if err != nil {
			return value{}, err
		}
		joined, err := join(f, at, args[1:], s.b, false)
		if s.null && err == nil {
			return null, nil
		}
		return joined, err
	}), nil
}

// join puts texts together. A NULL makes all NULL if it spoils, else it is left
// out with its separator.
func join(f *frame, at site, args []expr, separator []byte, spoils bool) (value, error) {
	var stack [8]value
	values, size, spoilt := stack[:0], 0, false
	for i := range args {
		v, err := args[i].eval(f)
		switch {
		case err != nil:
			return value{}, err
		case v.null:
			spoilt = spoils
		default:
			values = append(values, v)
			size += len(v.b) + len(separator)
		}
		if size > maxText {
			return value{}, at.wrap(errTooLong)
		}
	}
	if spoilt {
		return null, nil
	}
	start := len(f.buf)
	for i := range values {
		if i > 0 {
			f.buf = append(f.buf, separator...)
		}
		f.buf = append(f.buf, values[i].b...)
	}
	return value{b: f.since(start)}, nil
}

func isDocument(t change.Type) bool { return t.Kind == change.JSON || t.Kind == change.JSONB }
