package expr

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"tailrace/internal/change"
)

// Texts are measured in characters; a byte that is no UTF-8 counts as one.

func countChars(b []byte) int { return utf8.RuneCount(b) }

// charsEnd returns the length in bytes of the first n characters.
func charsEnd(b []byte, n int) int {
	if n >= len(b) {
		return len(b)
	}
	i := 0
	for ; n > 0 && i < len(b); n-- {
		if b[i] < utf8.RuneSelf {
			i++
			continue
		}
		_, size := utf8.DecodeRune(b[i:])
		i += size
	}
	return i
}

func upper(f *frame, b []byte) []byte {
	return mapped(f, b, unicode.ToUpper)
}

func lower(f *frame, b []byte) []byte {
	return mapped(f, b, unicode.ToLower)
}

func mapped(f *frame, b []byte, to func(rune) rune) []byte {
	start := len(f.buf)
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			f.buf = append(f.buf, b[i])
		} else {
			f.buf = utf8.AppendRune(f.buf, to(r))
		}
		i += n
	}
	return f.since(start)
}

func reverse(f *frame, b []byte) []byte {
	start := len(f.buf)
	for len(b) > 0 {
		_, n := utf8.DecodeLastRune(b)
		f.buf = append(f.buf, b[len(b)-n:]...)
		b = b[:len(b)-n]
	}
	return f.since(start)
}

// textFunction builds a function from text to text that cannot fail.
func textFunction(run func(f *frame, b []byte) []byte) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) {
		text, err := c.textual(args[0])
		if err != nil {
			return expr{}, err
		}
		return strict1(c.site(n, n.word), n.pos, typeOf(change.Text), text, func(f *frame, v value) (value, error) {
			return value{b: run(f, v.b)}, nil
		}), nil
	}
}

func startsWith(text, part []byte) bool { return bytes.HasPrefix(text, part) }
func endsWith(text, part []byte) bool   { return bytes.HasSuffix(text, part) }
func contains(text, part []byte) bool   { return bytes.Contains(text, part) }

func textTest(run func(text, part []byte) bool) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) {
		args, err := c.textuals(args)
		if err != nil {
			return expr{}, err
		}
		return strict2(c.site(n, n.word), n.pos, typeOf(change.Bool), args[0], args[1], func(_ *frame, a, b value) (value, error) {
			return value{i: int64(truth(run(a.b, b.b)))}, nil
		}), nil
	}
}

// buildLength counts characters, of bytea bytes.
func buildLength(c *compiler, n *node, args []expr) (expr, error) {
	e := args[0]
	count := func(b []byte) int { return len(b) }
	if e.typ.Kind != change.Bytes {
		var err error
		if e, err = c.textual(e); err != nil {
			return expr{}, err
		}
		count = countChars
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Int32), e, func(_ *frame, v value) (value, error) {
		return value{i: int64(count(v.b))}, nil
	}), nil
}

// buildSubstring counts from 1, with 0 meaning 1, and from the end below 0; what
// lies outside the text is left out. So does Spark.
func buildSubstring(c *compiler, n *node, args []expr) (expr, error) {
	text, err := c.textual(args[0])
	if err != nil {
		return expr{}, err
	}
	from, err := c.integral(n, args[1])
	if err != nil {
		return expr{}, err
	}
	length := constant(n.pos, typeOf(change.Int64), value{i: maxText})
	if len(args) == 3 {
		if length, err = c.integral(n, args[2]); err != nil {
			return expr{}, err
		}
	}
	return strict3(c.site(n, n.word), n.pos, typeOf(change.Text), text, from, length, func(_ *frame, v, from, length value) (value, error) {
		return value{b: substring(v.b, from.i, length.i)}, nil
	}), nil
}

func substring(b []byte, from, length int64) []byte {
	start := from - 1
	if from == 0 {
		start = 0
	}
	if from < 0 {
		start = max(from, -maxText-1) + int64(countChars(b))
	}
	if start > maxText {
		return nil
	}
	end := start + min(max(length, 0), 4*maxText)
	start, end = max(start, 0), max(end, 0)
	b = b[charsEnd(b, int(start)):]
	return b[:charsEnd(b, int(end-start))]
}

func buildLeft(c *compiler, n *node, args []expr) (expr, error) {
	return sides(c, n, args, func(b []byte, count int64) []byte { return substring(b, 1, count) })
}

func buildRight(c *compiler, n *node, args []expr) (expr, error) {
	return sides(c, n, args, func(b []byte, count int64) []byte {
		if count <= 0 {
			return nil
		}
		return b[charsEnd(b, max(0, countChars(b)-int(min(count, maxText)))):]
	})
}

func sides(c *compiler, n *node, args []expr, run func(b []byte, count int64) []byte) (expr, error) {
	text, err := c.textual(args[0])
	if err != nil {
		return expr{}, err
	}
	count, err := c.integral(n, args[1])
	if err != nil {
		return expr{}, err
	}
	return strict2(c.site(n, n.word), n.pos, typeOf(change.Text), text, count, func(_ *frame, v, count value) (value, error) {
		return value{b: run(v.b, count.i)}, nil
	}), nil
}

// buildTrim builds trim, btrim, ltrim and rtrim. Of the two-argument forms only
// btrim's is the same in Spark and in PostgreSQL.
func buildTrim(c *compiler, n *node, args []expr) (expr, error) {
	if len(args) == 2 && n.field == "" && n.word != "btrim" {
		return expr{}, c.fail(n.pos, "%s with two arguments is read differently by Spark and by PostgreSQL: write trim(LEADING characters FROM text), TRAILING or BOTH", n.word)
	}
	args, err := c.textuals(args)
	if err != nil {
		return expr{}, err
	}
	set := constant(n.pos, typeOf(change.Text), value{b: []byte(" ")})
	if len(args) == 2 {
		set = args[1]
	}
	leading, trailing := n.field != "TRAILING" && n.word != "rtrim", n.field != "LEADING" && n.word != "ltrim"
	return strict2(c.site(n, n.word), n.pos, typeOf(change.Text), args[0], set, func(_ *frame, v, set value) (value, error) {
		b := v.b
		for leading && len(b) > 0 {
			_, n := utf8.DecodeRune(b)
			if !bytes.Contains(set.b, b[:n]) {
				break
			}
			b = b[n:]
		}
		for trailing && len(b) > 0 {
			_, n := utf8.DecodeLastRune(b)
			if !bytes.Contains(set.b, b[len(b)-n:]) {
				break
			}
			b = b[:len(b)-n]
		}
		return value{b: b}, nil
	}), nil
}

// buildReplace replaces every occurrence; an empty search text has none.
func buildReplace(c *compiler, n *node, args []expr) (expr, error) {
	args, err := c.textuals(args)
	if err != nil {
		return expr{}, err
	}
	with := constant(n.pos, typeOf(change.Text), value{b: []byte{}})
	if len(args) == 3 {
		with = args[2]
	}
	return strict3(c.site(n, n.word), n.pos, typeOf(change.Text), args[0], args[1], with, func(f *frame, v, search, with value) (value, error) {
		b := v.b
		if len(search.b) == 0 {
			return v, nil
		}
		start := len(f.buf)
		for {
			i := bytes.Index(b, search.b)
			if i < 0 {
				f.buf = append(f.buf, b...)
				return value{b: f.since(start)}, nil
			}
			f.buf = append(append(f.buf, b[:i]...), with.b...)
			b = b[i+len(search.b):]
			if len(f.buf)-start > maxText {
				return value{}, errTooLong
			}
		}
	}), nil
}

// buildSplitPart counts parts from 1, and from the end below 0.
func buildSplitPart(c *compiler, n *node, args []expr) (expr, error) {
	texts, err := c.textuals(args[:2])
	if err != nil {
		return expr{}, err
	}
	part, err := c.integral(n, args[2])
	if err != nil {
		return expr{}, err
	}
	return strict3(c.site(n, n.word), n.pos, typeOf(change.Text), texts[0], texts[1], part, func(_ *frame, v, separator, part value) (value, error) {
		if part.i == 0 {
			return value{}, errPart
		}
		parts := int64(1)
		if len(separator.b) > 0 {
			parts += int64(bytes.Count(v.b, separator.b))
		}
		want := part.i
		if want < 0 {
			want += parts + 1
		}
		if want < 1 || want > parts {
			return value{}, nil
		}
		b := v.b
		if len(separator.b) == 0 {
			return value{b: b}, nil
		}
		for ; want > 1; want-- {
			b = b[bytes.Index(b, separator.b)+len(separator.b):]
		}
		if end := bytes.Index(b, separator.b); end >= 0 {
			b = b[:end]
		}
		return value{b: b}, nil
	}), nil
}

// buildPad makes a text exactly so many characters long.
func buildPad(c *compiler, n *node, args []expr) (expr, error) {
	text, err := c.textual(args[0])
	if err != nil {
		return expr{}, err
	}
	length, err := c.integral(n, args[1])
	if err != nil {
		return expr{}, err
	}
	fill := constant(n.pos, typeOf(change.Text), value{b: []byte(" ")})
	if len(args) == 3 {
		if fill, err = c.textual(args[2]); err != nil {
			return expr{}, err
		}
	}
	left := n.word == "lpad"
	return strict3(c.site(n, n.word), n.pos, typeOf(change.Text), text, length, fill, func(f *frame, v, length, fill value) (value, error) {
		if length.i > maxText/utf8.UTFMax {
			return value{}, errTooLong
		}
		missing := int(length.i) - countChars(v.b)
		if missing <= 0 || len(fill.b) == 0 {
			return value{b: v.b[:charsEnd(v.b, int(max(length.i, 0)))]}, nil
		}
		start := len(f.buf)
		if !left {
			f.buf = append(f.buf, v.b...)
		}
		whole := countChars(fill.b)
		for ; missing >= whole; missing -= whole {
			f.buf = append(f.buf, fill.b...)
		}
		f.buf = append(f.buf, fill.b[:charsEnd(fill.b, missing)]...)
		if left {
			f.buf = append(f.buf, v.b...)
		}
		return value{b: f.since(start)}, nil
	}), nil
}

// buildPosition builds position and locate (part, text[, from]) and instr (text,
// part): the place of the first occurrence from 1 on, or 0.
func buildPosition(c *compiler, n *node, args []expr) (expr, error) {
	texts, err := c.textuals(args[:2])
	if err != nil {
		return expr{}, err
	}
	part, text := texts[0], texts[1]
	if n.word == "instr" {
		part, text = text, part
	}
	from := constant(n.pos, typeOf(change.Int32), value{i: 1})
	if len(args) == 3 {
		if from, err = c.integral(n, args[2]); err != nil {
			return expr{}, err
		}
	}
	return strict3(c.site(n, n.word), n.pos, typeOf(change.Int32), part, text, from, func(_ *frame, part, text, from value) (value, error) {
		if from.i < 1 || from.i > int64(countChars(text.b))+1 {
			return value{}, nil
		}
		skip := charsEnd(text.b, int(from.i)-1)
		i := bytes.Index(text.b[skip:], part.b)
		if i < 0 {
			return value{}, nil
		}
		return value{i: int64(countChars(text.b[:skip+i])) + 1}, nil
	}), nil
}

func buildRegexpLike(c *compiler, n *node, args []expr) (expr, error) {
	args, err := c.textuals(args)
	if err != nil {
		return expr{}, err
	}
	return c.matches(n, args[0], args[1])
}

// buildRegexpReplace replaces every match; $1 in the replacement is the first
// group and \$ a dollar.
func buildRegexpReplace(c *compiler, n *node, args []expr) (expr, error) {
	args, err := c.textuals(args)
	if err != nil {
		return expr{}, err
	}
	re, err := c.regular(n, args[1])
	if err != nil {
		return expr{}, err
	}
	java, err := c.literalText(n, args[2], "replacement")
	if err != nil {
		return expr{}, err
	}
	template, ok := replacement(java, re.NumSubexp())
	if !ok {
		return expr{}, c.fail(args[2].pos, "regexp_replace: the replacement names a group that the pattern does not have")
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Text), args[0], func(_ *frame, v value) (value, error) {
		out := re.ReplaceAll(v.b, template)
		if len(out) > maxText {
			return value{}, errTooLong
		}
		return value{b: out}, nil
	}), nil
}

// replacement turns Java's template into Go's.
func replacement(java string, groups int) (template []byte, ok bool) {
	for i := 0; i < len(java); i++ {
		switch c := java[i]; {
		case c == '\\' && i+1 < len(java):
			i++
			template = appendLiteral(template, java[i])
		case c == '$':
			if i+1 == len(java) || !isDigit(java[i+1]) || int(java[i+1]-'0') > groups {
				return nil, false
			}
			i++
			template = append(template, '$', '{', java[i], '}')
		default:
			template = append(template, c)
		}
	}
	return template, true
}

func appendLiteral(template []byte, c byte) []byte {
	if c == '$' {
		template = append(template, '$')
	}
	return append(template, c)
}

// buildRegexpExtract gives a group of the first match, the first one unless
// another is named, 0 for all; no match is the empty text.
func buildRegexpExtract(c *compiler, n *node, args []expr) (expr, error) {
	texts, err := c.textuals(args[:2])
	if err != nil {
		return expr{}, err
	}
	re, err := c.regular(n, texts[1])
	if err != nil {
		return expr{}, err
	}
	group := 1
	if len(args) == 3 {
		if group, err = c.literalInt(n, args[2], 0, int64(re.NumSubexp()), "group"); err != nil {
			return expr{}, err
		}
	}
	if group > re.NumSubexp() {
		return expr{}, c.fail(n.pos, "regexp_extract takes group 1, and the pattern has no group: name group 0 for the whole match")
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Text), texts[0], func(_ *frame, v value) (value, error) {
		at := re.FindSubmatchIndex(v.b)
		if at == nil || at[2*group] < 0 {
			return value{}, nil
		}
		return value{b: v.b[at[2*group]:at[2*group+1]]}, nil
	}), nil
}

// bytesOf makes an argument the bytes of a text or a bytea.
func (c *compiler) bytesOf(e expr) (expr, error) {
	if e.typ.Kind == change.Bytes {
		return e, nil
	}
	return c.textual(e)
}

func hashFunction(sum func(dst, b []byte) []byte) func(c *compiler, n *node, args []expr) (expr, error) {
	return func(c *compiler, n *node, args []expr) (expr, error) {
		e, err := c.bytesOf(args[0])
		if err != nil {
			return expr{}, err
		}
		return strict1(c.site(n, n.word), n.pos, typeOf(change.Text), e, func(f *frame, v value) (value, error) {
			start := len(f.buf)
			f.buf = sum(f.buf, v.b)
			return value{b: f.since(start)}, nil
		}), nil
	}
}

var buildMD5 = hashFunction(func(dst, b []byte) []byte {
	h := md5.Sum(b)
	return hex.AppendEncode(dst, h[:])
})

var buildSHA1 = hashFunction(func(dst, b []byte) []byte {
	h := sha1.Sum(b)
	return hex.AppendEncode(dst, h[:])
})

var sha2 = map[int]func(dst, b []byte) []byte{
	224: func(dst, b []byte) []byte { h := sha256.Sum224(b); return hex.AppendEncode(dst, h[:]) },
	256: func(dst, b []byte) []byte { h := sha256.Sum256(b); return hex.AppendEncode(dst, h[:]) },
	384: func(dst, b []byte) []byte { h := sha512.Sum384(b); return hex.AppendEncode(dst, h[:]) },
	512: func(dst, b []byte) []byte { h := sha512.Sum512(b); return hex.AppendEncode(dst, h[:]) },
}

func buildSHA2(c *compiler, n *node, args []expr) (expr, error) {
	bits, err := c.literalInt(n, args[1], 0, 512, "length")
	if err != nil {
		return expr{}, err
	}
	if bits == 0 {
		bits = 256
	}
	sum, ok := sha2[bits]
	if !ok {
		return expr{}, c.fail(args[1].pos, "sha2: the length is 224, 256, 384, 512, or 0 for 256")
	}
	return hashFunction(sum)(c, n, args)
}

// buildHex prints bytes, or an integer in two's complement, in capitals.
func buildHex(c *compiler, n *node, args []expr) (expr, error) {
	at := c.site(n, n.word)
	if isInteger(args[0].typ.Kind) {
		return strict1(at, n.pos, typeOf(change.Text), args[0], func(f *frame, v value) (value, error) {
			start := len(f.buf)
			f.buf = strconv.AppendUint(f.buf, uint64(v.i), 16)
			return value{b: capitals(f.since(start))}, nil
		}), nil
	}
	e, err := c.bytesOf(args[0])
	if err != nil {
		return expr{}, err
	}
	return strict1(at, n.pos, typeOf(change.Text), e, func(f *frame, v value) (value, error) {
		start := len(f.buf)
		f.buf = hex.AppendEncode(f.buf, v.b)
		return value{b: capitals(f.since(start))}, nil
	}), nil
}

// capitals changes hexadecimal digits in place.
func capitals(b []byte) []byte {
	for i, c := range b {
		if strings.IndexByte("abcdef", c) >= 0 {
			b[i] = c - 'a' + 'A'
		}
	}
	return b
}
