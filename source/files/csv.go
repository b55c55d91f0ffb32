package files

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"tailrace/internal/change"
)

// field is one field of a CSV record.
type field struct {
	start, end int  // inside the record; of a quoted one without its quotes
	quoted     bool //
	doubled    bool // it holds doubled quotes
}

// csvScanner splits records by RFC 4180: fields between delimiters, a quoted field may
// hold delimiters, line breaks and doubled quotes. Lines end with LF or CRLF. It is
// strict where others guess: a quote inside an unquoted field, something behind a
// closing quote, a lone CR are flaws. (encoding/csv does not tell a quoted empty
// field, which is a text, from an unquoted one, which is NULL.)
type csvScanner struct {
	delimiter byte
	fields    []field
	lines     int64 // line feeds inside the record, quoted ones
	next      int   // where the next record begins
	at        int   // where the flaw is
	what      string
}

// record splits the first record of b. eof: nothing follows b. incomplete: more of
// the file is needed. Neither ok nor incomplete: at and what tell the flaw.
func (s *csvScanner) record(b []byte, eof bool) (ok, incomplete bool) {
	s.fields, s.lines = s.fields[:0], 0
	i := 0
	for {
		f := field{start: i}
		if i < len(b) && b[i] == '"' {
			f.quoted = true
			i++
			f.start = i
			for {
				n := bytes.IndexByte(b[i:], '"')
				if n < 0 {
					if eof {
						return s.flaw(f.start-1, "a quoted field has no closing quote: the file is cut off, or a quote is missing"), false
					}
					return false, true
				}
				s.lines += int64(bytes.Count(b[i:i+n], newline))
				i += n + 1
				if i == len(b) && !eof {
					return false, true // a second quote may follow
				}
				if i < len(b) && b[i] == '"' {
					f.doubled = true
					i++
					continue
				}
				break
			}
			f.end = i - 1
		} else {
			for i < len(b) && b[i] != s.delimiter && b[i] != '\n' && b[i] != '\r' && b[i] != '"' {
				i++
			}
			f.end = i
			if i < len(b) && b[i] == '"' {
				return s.flaw(i, "a quote inside a field that does not begin with one"), false
			}
		}
		s.fields = append(s.fields, f)
		if i == len(b) {
			s.next = i
			return eof, !eof
		}
		switch b[i] {
		case s.delimiter:
			i++
		case '\n':
			s.next = i + 1
			return true, false
		case '\r':
			if i+1 == len(b) && !eof {
				return false, true
			}
			if i+1 == len(b) || b[i+1] != '\n' {
				return s.flaw(i, "a carriage return without a line feed; lines end with LF or CRLF"), false
			}
			s.next = i + 2
			return true, false
		default:
			return s.flaw(i, "something follows the closing quote of a field"), false
		}
	}
}

var newline = []byte{'\n'}

func (s *csvScanner) flaw(at int, what string) bool {
	s.at, s.what = at, what
	return false
}

// blank reports a line without anything.
func (s *csvScanner) blank() bool {
	return len(s.fields) == 1 && !s.fields[0].quoted && s.fields[0].start == s.fields[0].end
}

// csvDecoder reads CSV.
type csvDecoder struct {
	*input
	layout  *layout
	scan    csvScanner
	null    string
	names   [][]byte // of the header's fields; nil: no header
	source  []int    // column -> field, or -1
	extra   []int    // fields of the header that are no column
	scratch []byte
	record  []byte
}

func newCSVDecoder(in *input, l *layout) (*csvDecoder, error) {
	d := &csvDecoder{input: in, layout: l, scan: csvScanner{delimiter: l.rel.delimiter}, null: l.rel.Null}
	d.source = make([]int, len(l.columns))
	if !l.rel.header {
		for i := range d.source {
			d.source[i] = i
		}
		return d, nil
	}
	_, err := d.read()
	if err == nil {
		err = d.header()
	}
	if err != nil && err != io.EOF {
		in.close()
		return nil, err
	}
	return d, nil
}

// read finds the next record that is not a blank line and returns the line it begins
// in. Its text is d.record until the next call.
func (d *csvDecoder) read() (line int64, err error) {
	w := d.window
	for {
		rest := w.buf[w.start:]
		if len(rest) == 0 && w.eof {
			return 0, io.EOF
		}
		ok, incomplete := d.scan.record(rest, w.eof)
		if incomplete && len(rest) <= maxRecord {
			if err := w.more(); err != nil {
				return 0, err
			}
			continue
		}
		if incomplete || ok && d.scan.next > maxRecord {
			return 0, w.flawAt(w.line, 0, errRecordTooLong.Error())
		}
		if !ok {
			// The place is in the line that it is in, not where the record began.
			within := int64(bytes.Count(rest[:d.scan.at], newline))
			return 0, w.flawAt(w.line+within, d.scan.at, d.scan.what)
		}
		line = w.line
		d.record = rest[:d.scan.next]
		if !utf8.Valid(d.record) {
			return 0, d.badCharacter()
		}
		if n := bytes.IndexByte(d.record, 0); n >= 0 {
			return 0, d.flawAt(line+int64(bytes.Count(d.record[:n], newline)), n, "the character NUL, which no database can hold in text")
		}
		w.start += d.scan.next
		w.line += d.scan.lines
		if d.scan.next > 0 && d.record[d.scan.next-1] == '\n' {
			w.line++
		}
		if !d.scan.blank() {
			return line, nil
		}
	}
}

func (d *csvDecoder) badCharacter() error {
	at := 0
	for at < len(d.record) {
		r, n := utf8.DecodeRune(d.record[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return d.flawAt(d.line+int64(bytes.Count(d.record[:at], newline)), at, flawUTF8)
}

// text returns a field's characters.
func (d *csvDecoder) text(f field) []byte {
	b := d.record[f.start:f.end]
	if !f.doubled {
		return b
	}
	d.scratch = d.scratch[:0]
	for i := 0; i < len(b); i++ {
		d.scratch = append(d.scratch, b[i])
		if b[i] == '"' {
			i++
		}
	}
	return d.scratch
}

func (d *csvDecoder) isNull(f field) bool {
	return !f.quoted && string(d.record[f.start:f.end]) == d.null
}

// header matches the first record's names with the columns.
func (d *csvDecoder) header() error {
	seen := make(map[string]int, len(d.scan.fields))
	for i, f := range d.scan.fields {
		name := bytes.Clone(d.text(f))
		if len(name) == 0 {
			return &flaw{line: 1, offset: -1, what: fmt.Sprintf("the header's field %d has no name", i+1)}
		}
		if first, twice := seen[string(name)]; twice {
			return &flaw{line: 1, offset: -1, what: fmt.Sprintf("the header's fields %d and %d have one name", first+1, i+1)}
		}
		seen[string(name)] = i
		d.names = append(d.names, name)
	}
	placed := make([]bool, len(d.names))
	for i := range d.source {
		d.source[i] = -1
		if at, ok := seen[d.layout.columns[i].Name]; ok {
			d.source[i], placed[at] = at, true
		}
	}
	for at, name := range d.names {
		if placed[at] {
			continue
		}
		if i := d.layout.folded(string(name)); i >= 0 && d.source[i] < 0 {
			d.source[i] = at
			continue
		}
		d.extra = append(d.extra, at)
	}
	return nil
}

// nameOf is what the file calls field at.
func (d *csvDecoder) nameOf(at int) []byte {
	if at < len(d.names) {
		return d.names[at]
	}
	if d.names == nil && at < len(d.layout.columns) {
		return []byte(d.layout.columns[at].Name)
	}
	return []byte(positional(at))
}

// positional names a field that nothing else names: _c0, _c1 and so on.
func positional(at int) string { return "_c" + strconv.Itoa(at) }

// next implements decoder.
func (d *csvDecoder) next(s *slab) (change.Row, uint64, error) {
	line, err := d.read()
	if err != nil {
		return nil, 0, err
	}
	columns, fields := d.layout.columns, d.scan.fields
	if err := d.cutOff(line); err != nil {
		return nil, 0, err
	}
	row := s.row(len(d.record) + 6*len(columns) + 64)
	d.rescue.reset()
	for i := range columns {
		at := d.source[i]
		if at < 0 || at >= len(fields) || d.isNull(fields[at]) {
			row = appendNull(row)
			continue
		}
		start := len(row)
		var ok bool
		if row, ok = fit(openText(row), d.text(fields[at]), &columns[i].Type); ok {
			row = closeText(row, start)
			continue
		}
		row = appendNull(row[:start])
		d.rescueField(at)
	}
	for _, at := range d.extra {
		d.rescueField(at)
	}
	for at := d.expected(); at < len(fields); at++ {
		d.rescueField(at)
	}
	row = d.rescue.append(row)
	return s.keep(row), uint64(line), nil
}

// cutOff judges a last record without a line feed that lacks fields. Elsewhere missing
// fields are NULL.
func (d *csvDecoder) cutOff(line int64) error {
	if !d.eof || d.start < len(d.buf) || d.record[len(d.record)-1] == '\n' || len(d.scan.fields) >= d.expected() {
		return nil
	}
	return &flaw{line: line, offset: d.offset + int64(d.start), what: fmt.Sprintf("the last line has no line feed and %d of %d fields: the file is cut off, or still being written",
		len(d.scan.fields), d.expected())}
}

// expected is how many fields have a name.
func (d *csvDecoder) expected() int {
	if d.names == nil {
		return len(d.layout.columns)
	}
	return len(d.names)
}

func (d *csvDecoder) rescueField(at int) {
	if at >= len(d.scan.fields) || d.isNull(d.scan.fields[at]) {
		return
	}
	d.rescue.open(d.nameOf(at))
	d.rescue.members = appendJSONString(d.rescue.members, d.text(d.scan.fields[at]))
}
