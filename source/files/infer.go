package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// The sample that a layout is inferred from ends at whichever comes first: enough to
// meet every column and type that a feed commonly has, little enough to be read at
// every start.
const (
	sampleRows  = 1000
	sampleBytes = 1 << 20
	sampleFiles = 50
)

var errNothingToInferFrom = errors.New("no file has rows to infer the columns from")

// seen is what kinds of values a column had, as a set.
type seen uint16

const (
	sawBool seen = 1 << iota
	sawInt
	sawBig      // an integer beyond 64 bits, or a fraction with more digits than a float keeps
	sawFraction // or an exponent
	sawDate
	sawWall    // date and time without zone
	sawInstant // with
	sawText
	sawNested
)

// typ is the narrowest type that holds everything that was seen.
func (s seen) typ() change.Type {
	switch {
	case s == sawBool:
		return typeBool
	case s == sawInt:
		return typeInt64
	case s != 0 && s&^(sawInt|sawFraction) == 0:
		return typeFloat64
	case s != 0 && s&^(sawInt|sawFraction|sawBig) == 0:
		return typeNumeric
	case s == sawDate:
		return typeDate
	case s == sawWall, s == sawWall|sawDate:
		return typeTimestamp
	case s == sawInstant:
		return typeInstant
	case s == sawNested:
		return typeJSONB
	}
	return typeText
}

// floatDigits always come back from a float of 64 bits that holds their nearest.
const floatDigits = 17

// sawNumber judges a number in JSON's notation.
func sawNumber(text []byte) seen {
	d, _ := readDecimal(text)
	if len(d.fraction) == 0 && !d.hasExp {
		if _, err := strconv.ParseInt(view(text), 10, 64); err != nil {
			return sawBig
		}
		return sawInt
	}
	if _, ok := fitFloat(nil, text, 64); !ok || d.significant() > floatDigits {
		return sawBig
	}
	return sawFraction
}

// sawField judges a CSV field. A number with leading zeros is a text: they are lost
// otherwise, and codes are written so.
func sawField(text []byte) seen {
	s := scanner{b: text}
	switch {
	case len(text) == 0:
		return sawText
	case s.number(0) == len(text):
		return sawNumber(text)
	case strings.EqualFold(view(text), "true"), strings.EqualFold(view(text), "false"):
		return sawBool
	}
	t, ok := readISO(text)
	switch {
	case !ok:
		return sawText
	case t.hasZone:
		return sawInstant
	case t.hasClock:
		return sawWall
	}
	return sawDate
}

// inference gathers columns in the order of their first appearance. Names that
// differ in case alone are one column, of the first spelling.
type inference struct {
	columns []change.Column // Type only from Parquet
	seen    []seen
	byName  map[string]int
	rows    int64
}

// column returns the index of name, or -1 for a name that cannot be one.
func (n *inference) column(name string) int {
	folded := strings.ToLower(name)
	if i, ok := n.byName[folded]; ok {
		return i
	}
	if name == "" || strings.EqualFold(name, RescuedColumn) {
		return -1
	}
	n.byName[folded] = len(n.columns)
	n.columns = append(n.columns, change.Column{Name: name, Nullable: true})
	n.seen = append(n.seen, 0)
	return len(n.columns) - 1
}

func (n *inference) saw(name string, s seen) {
	if i := n.column(name); i >= 0 {
		n.seen[i] |= s
	}
}

// infer reads the first files, in order, and returns the columns.
func (s *Source) infer(ctx context.Context, rel *relation) ([]change.Column, error) {
	files, err := rel.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("relation %s: %w", rel.Name, err)
	}
	n := &inference{byName: map[string]int{}}
	left := int64(sampleBytes)
	for _, f := range files[:min(len(files), sampleFiles)] {
		if n.rows >= sampleRows || left <= 0 {
			break
		}
		used, err := n.sample(ctx, rel, f, left)
		left -= used
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case s.now().Sub(f.modified) < s.poll && fault.KindOf(explain(rel, f, err)) == fault.Operator:
			// It may be half written; what was complete counts.
		default:
			return nil, fmt.Errorf("infer columns: %w", explain(rel, f, err))
		}
		if len(n.columns) > maxColumns {
			return nil, fault.Refuse("declare the columns that matter (columns: of the relation)", "relation %s, file %s: more than %d columns", rel.Name, f.path, maxColumns)
		}
	}
	return n.typed()
}

// typed gives the columns that were found, with the types of what was seen in them.
func (n *inference) typed() ([]change.Column, error) {
	if n.rows == 0 || len(n.columns) == 0 {
		return nil, errNothingToInferFrom
	}
	for i := range n.columns {
		if n.columns[i].Type.Kind == change.Other {
			n.columns[i].Type = n.seen[i].typ()
		}
	}
	return n.columns, nil
}

// list returns the relation's files in the order in which they are taken.
func (rel *relation) list(ctx context.Context) ([]found, error) {
	files, err := rel.glob.list(ctx)
	if rel.Order == ByTime {
		slices.SortStableFunc(files, func(a, b found) int { return a.modified.Compare(b.modified) })
	}
	return files, err
}

// sample reads one file until the sample is complete and returns the bytes used.
func (n *inference) sample(ctx context.Context, rel *relation, f found, left int64) (used int64, err error) {
	o, err := f.open()
	if err != nil {
		return 0, err
	}
	defer o.file.Close()
	bare := newLayout(rel, nil)
	d, err := decode(ctx, o, bare)
	if err != nil {
		return 0, err
	}
	defer d.close()
	switch d := d.(type) {
	case *jsonDecoder:
		return n.sampleJSON(d, left)
	case *csvDecoder:
		return n.sampleCSV(d, left)
	case *parquetDecoder:
		n.sampleParquet(d)
	}
	return 0, nil
}

// sampleParquet takes the columns from the file's schema; the rows need not be read.
func (n *inference) sampleParquet(d *parquetDecoder) {
	for _, f := range d.fields {
		i := n.column(f.name)
		if i < 0 {
			continue
		}
		if c := &n.columns[i]; c.Type.Kind == change.Other {
			c.Type = f.typ
		} else {
			c.Type = widen(c.Type, f.typ)
		}
	}
	n.rows += max(d.file.NumRows(), 1) // a schema says enough
}

// widen is the narrowest type that holds the values of both without loss.
func widen(a, b change.Type) change.Type {
	rank := func(k change.Kind) int {
		return slices.Index([]change.Kind{change.Int16, change.Int32, change.Int64, change.Numeric}, k)
	}
	x, y := rank(a.Kind), rank(b.Kind)
	switch {
	case a.Name == b.Name:
		return a
	case a.Kind == change.Numeric && b.Kind == change.Numeric, x >= 0 && y >= 0 && (a.Kind == change.Numeric || b.Kind == change.Numeric):
		return typeNumeric
	case x > y && y >= 0:
		return a
	case y > x && x >= 0:
		return b
	case a.Kind == change.Float32 && b.Kind == change.Float64:
		return b
	case a.Kind == change.Float64 && b.Kind == change.Float32:
		return a
	}
	return typeText
}

func (n *inference) sampleJSON(d *jsonDecoder, left int64) (int64, error) {
	for n.rows < sampleRows && d.offset+int64(d.start) < left {
		line, number, complete, err := d.line()
		if err == io.EOF {
			break
		}
		if err != nil {
			return d.offset, err
		}
		if !d.scan.record(line, d.layout) {
			return d.offset, d.flaw(line, number, complete)
		}
		for i := range d.scan.extra {
			m := &d.scan.extra[i]
			var s seen
			switch m.value.kind {
			case isTrue, isFalse:
				s = sawBool
			case isNumber:
				s = sawNumber(d.scan.b[m.value.start:m.value.end])
			case isString:
				s = sawText
			case isNested:
				s = sawNested
			}
			inside := d.scan.b[m.nameStart:m.nameEnd]
			if m.nameEscaped {
				inside = unescape(nil, inside)
			}
			n.saw(string(inside), s)
		}
		n.rows++
		d.pass(line, complete)
	}
	return d.offset + int64(d.start), nil
}

func (n *inference) sampleCSV(d *csvDecoder, left int64) (int64, error) {
	for _, name := range d.names {
		n.saw(string(name), 0)
	}
	for n.rows < sampleRows && d.offset+int64(d.start) < left {
		line, err := d.read()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = d.cutOff(line)
		}
		if err != nil {
			return d.offset, err
		}
		for at, f := range d.scan.fields {
			if at >= len(d.names) && d.names != nil {
				break // beyond the header: rescued
			}
			name := positional(at)
			if d.names != nil {
				name = string(d.names[at])
			}
			if d.isNull(f) {
				n.saw(name, 0)
				continue
			}
			n.saw(name, sawField(d.text(f)))
		}
		n.rows++
	}
	return d.offset + int64(d.start), nil
}
