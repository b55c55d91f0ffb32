package files

import (
	"bytes"
	"io"
	"strings"

	"tailrace/internal/change"
)

// jsonDecoder reads JSON lines: one object a line.
type jsonDecoder struct {
	*input
	layout  *layout
	scan    scanner
	scratch []byte
	names   [][]byte // of scan.extra
}

func newJSONDecoder(in *input, l *layout) *jsonDecoder {
	return &jsonDecoder{input: in, layout: l, scan: scanner{tokens: make([]token, len(l.columns))}}
}

// line returns the next line that is not blank, without its line feed, and its
// number. w.start stays in front of it until the next call. io.EOF is the end.
func (d *jsonDecoder) line() (line []byte, number int64, complete bool, err error) {
	w := d.window
	for {
		searched := 0
		for {
			rest := w.buf[w.start:]
			if n := bytes.IndexByte(rest[searched:], '\n'); n >= 0 {
				line, complete = rest[:searched+n], true
				break
			}
			searched = len(rest)
			if w.eof {
				line, complete = rest, false
				break
			}
			if err := w.more(); err != nil {
				return nil, 0, false, err
			}
		}
		number = w.line
		if len(line) > maxRecord {
			return nil, 0, false, w.flawAt(number, 0, errRecordTooLong.Error())
		}
		if len(bytes.TrimRight(line, " \t\r")) > 0 {
			return line, number, complete, nil
		}
		if !complete {
			return nil, 0, false, io.EOF
		}
		d.pass(line, true)
	}
}

// pass moves on behind a line.
func (d *jsonDecoder) pass(line []byte, complete bool) {
	d.start += len(line)
	if complete {
		d.start++
		d.window.line++
	}
}

// next implements decoder.
func (d *jsonDecoder) next(s *slab) (change.Row, uint64, error) {
	line, number, complete, err := d.line()
	if err != nil {
		return nil, 0, err
	}
	if !d.scan.record(line, d.layout) {
		return nil, 0, d.flaw(line, number, complete)
	}
	columns := d.layout.columns
	row := s.row(len(line) + 6*len(columns) + 64)
	d.rescue.reset()
	if len(d.scan.extra) > 0 {
		d.settleExtra()
	}
	for i := range columns {
		t := &d.scan.tokens[i]
		if t.kind <= isNull {
			row = appendNull(row)
			continue
		}
		start := len(row)
		var ok bool
		if row, ok = d.value(openText(row), t, &columns[i].Type); ok {
			row = closeText(row, start)
			continue
		}
		row = appendNull(row[:start])
		if t.kind != notSent {
			d.rescueValue(d.nameOf(i, t), t)
		}
	}
	row = d.rescue.append(row)
	d.pass(line, complete)
	return s.keep(row), uint64(number), nil
}

// value appends the canonical text of a token for a column's type.
func (d *jsonDecoder) value(row []byte, t *token, typ *change.Type) ([]byte, bool) {
	raw := d.scan.b[t.start:t.end]
	switch typ.Kind {
	case change.JSON:
		return append(row, raw...), true
	case change.JSONB:
		return appendCompact(row, raw, t), true
	}
	switch t.kind {
	case isString:
		inside := raw[1 : len(raw)-1]
		if t.escaped {
			d.scratch = unescape(d.scratch[:0], inside)
			inside = d.scratch
		}
		return fit(row, inside, typ)
	case isNumber:
		switch typ.Kind {
		case change.Int16, change.Int32, change.Int64, change.Float32, change.Float64, change.Numeric, change.Text:
			return fit(row, raw, typ)
		}
	case isTrue, isFalse:
		switch typ.Kind {
		case change.Bool, change.Text:
			return fit(row, raw, typ)
		}
	case isNested:
		if typ.Kind == change.Text {
			d.scratch = appendCompact(d.scratch[:0], raw, t)
			return fit(row, d.scratch, typ)
		}
	}
	return row, false
}

func appendCompact(dst, raw []byte, t *token) []byte {
	if t.kind == isNested && t.escaped {
		return compact(dst, raw)
	}
	return append(dst, raw...)
}

func (d *jsonDecoder) rescueValue(name []byte, t *token) {
	d.rescue.open(name)
	d.rescue.members = appendCompact(d.rescue.members, d.scan.b[t.start:t.end], t)
}

// nameOf is the name that the record gave to the value of column i.
func (d *jsonDecoder) nameOf(i int, t *token) []byte {
	if t.renamed {
		for j := range d.scan.extra {
			if d.scan.extra[j].value.start == t.start {
				return d.names[j]
			}
		}
	}
	return []byte(d.layout.columns[i].Name)
}

// settleExtra places the members that no column has exactly as they are spelled: a
// name with escapes may still be a column's, another case may be if the column was
// not sent. The rest is rescued. Of one name given twice the last counts.
func (d *jsonDecoder) settleExtra() {
	extra := d.scan.extra
	d.names = d.names[:0]
	for i := range extra {
		m := &extra[i]
		name := d.scan.b[m.nameStart:m.nameEnd]
		if m.nameEscaped {
			name = unescape(nil, name)
			if column := d.layout.exact(name, 0); column >= 0 {
				if d.scan.tokens[column].start < m.value.start {
					d.scan.tokens[column] = m.value
				}
				m.value.kind = notSent // it has its place
			}
		}
		d.names = append(d.names, name)
	}
	var last map[string]int
	if len(extra) > fewNames {
		last = make(map[string]int, len(extra))
		for i, name := range d.names {
			last[string(name)] = i
		}
	}
	for i, name := range d.names {
		m := &extra[i]
		switch {
		case m.value.kind == notSent:
			continue
		case last != nil && last[string(name)] != i, last == nil && again(d.names[i+1:], name):
			continue
		}
		if column := d.layout.folded(view(name)); column >= 0 && d.scan.tokens[column].kind == notSent {
			m.value.renamed = true
			d.scan.tokens[column] = m.value
			continue
		}
		if m.value.kind != isNull {
			d.rescueValue(name, &m.value)
		}
	}
}

// fewNames is how many are compared with each other faster than through a map.
const fewNames = 16

func again(names [][]byte, name []byte) bool {
	for _, n := range names {
		if bytes.Equal(n, name) {
			return true
		}
	}
	return false
}

// flaw explains what the scanner found.
func (d *jsonDecoder) flaw(line []byte, number int64, complete bool) *flaw {
	what := d.scan.what
	switch {
	case d.scan.at == len(line) && what == flawEnds && !complete:
		what = "the last line ends in the middle of its object: the file is cut off, or still being written"
	case d.scan.at == len(line) && what == flawEnds:
		what = "the line ends in the middle of its object; an object must be whole in one line"
	case what == flawNotObject && strings.HasPrefix(string(line[d.scan.at:]), "["):
		what = "an array; each line must be one object"
	case what == flawNotObject:
		what = "not a JSON object"
	case d.scan.character:
	default:
		what = "not JSON: " + what
	}
	return d.flawAt(number, d.scan.at, what)
}
