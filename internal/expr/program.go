// Package expr compiles conditions and projections over one row, in the SQL that
// AUTO CDC definitions use, which is Spark's.
package expr

import (
	"slices"
	"sync/atomic"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Column is a column that an expression can read.
type Column struct {
	Name string
	Type change.Type
}

// Program is an expression, parsed and checked once and turned into closures, so
// that a row costs no parsing and, on the common path, no memory. It may be used
// by several goroutines.
//
// The language is Spark's where Spark and PostgreSQL differ, and refuses what
// either would do in silence; docs/expressions.md is its description. What
// matters most:
//
//   - A token in double quotes is a string, never a name. Names are taken without
//     regard to case, in backticks first exactly.
//   - Logic is three-valued. Only TRUE makes a condition true.
//   - A string literal takes the type of what it is compared with, when the
//     program is compiled. A text column or any other text is cast to that type
//     for each row, and the row fails if it cannot be.
//   - Numbers compare exactly: nothing is rounded to a float. Only a decimal
//     literal beside a float column stands for the nearest float.
//   - Texts compare by their bytes. All times are UTC.
//
// Operators, from the weakest to the strongest; those of one line associate to
// the left:
//
//	OR
//	AND
//	NOT !
//	= == <> != < <= > >= <=>  IN  BETWEEN  LIKE  ILIKE  RLIKE  IS
//	+ - ||
//	* / % DIV
//	+ - (of one operand)
//	:: : [] . -> ->>
//
// Comparisons do not chain: a = b = c and a = b IN (c), which Spark and
// PostgreSQL read differently, need parentheses. IS may follow a comparison and
// tests its outcome.
type Program struct {
	root    expr
	text    string
	columns []int
	width   int
	spare   atomic.Pointer[frame] // scratch of the last evaluation, for the next
}

// Compile parses text and checks it against the columns. Errors are fault.Usage
// errors that name line and column of the text.
func Compile(text string, columns []Column) (*Program, error) {
	tree, err := parse(text)
	if err != nil {
		return nil, err
	}
	c := &compiler{text: text, columns: columns, used: map[int]bool{}}
	root, err := c.compile(tree)
	if err != nil {
		return nil, err
	}
	if root.untyped {
		root.typ = typeOf(change.Text)
	}
	var out printer
	out.print(tree)
	p := &Program{root: root, text: out.String()}
	for i := range c.used {
		p.columns = append(p.columns, i)
	}
	slices.Sort(p.columns)
	if n := len(p.columns); n > 0 {
		p.width = p.columns[n-1] + 1
	}
	return p, nil
}

// CompileCondition is Compile for a condition: another type than boolean is an
// error. A bare NULL is a condition that is never true.
func CompileCondition(text string, columns []Column) (*Program, error) {
	p, err := Compile(text, columns)
	if err != nil {
		return nil, err
	}
	if p.root.typ.Kind != change.Bool && !p.root.untyped {
		return nil, badly(text, 0, "a condition must be boolean, this is %s", p.root.typ.Name)
	}
	return p, nil
}

// Type returns the result's type, as PostgreSQL names it. A bare column has its
// own type; an expression that can only be NULL has type text.
func (p *Program) Type() change.Type { return p.root.typ }

// Columns returns the indexes of the columns it may read, ascending. The caller
// must not change it.
func (p *Program) Columns() []int { return p.columns }

// String returns the canonical text: it compiles to the same program and prints
// as itself.
func (p *Program) String() string { return p.text }

// Test evaluates a condition over a row with one value a column. known is false
// for NULL; truth is then false. Errors are those of Eval; a program that is no
// condition is one too.
func (p *Program) Test(row []change.Value) (truth, known bool, err error) {
	f, err := p.begin(row)
	if err != nil {
		return false, false, err
	}
	var t tri
	switch {
	case p.root.test != nil:
		t, err = p.root.test(f)
	case p.root.untyped:
		t = unknown
	default:
		err = fault.Badly("%s is no condition: it is of type %s", p.text, p.root.typ.Name)
	}
	p.end(f)
	if err != nil {
		return false, false, err
	}
	return t == yes, t != unknown, nil
}

// Eval evaluates a projection over a row with one value a column. The value is
// NULL or in PostgreSQL's text form, appended to buf, which is returned; a bare
// column's value is passed through as it is. Errors are fault.Operator errors
// that name the place in the text and never a value: an Absent column was read,
// or a function cannot be computed for this row.
func (p *Program) Eval(row []change.Value, buf []byte) (change.Value, []byte, error) {
	f, err := p.begin(row)
	if err != nil {
		return change.Value{}, buf, err
	}
	defer p.end(f)
	if p.root.column >= 0 {
		v := row[p.root.column]
		if v.State == change.Absent {
			_, err = p.root.eval(f)
			return change.Value{}, buf, err
		}
		return v, buf, nil
	}
	v, err := p.root.eval(f)
	switch {
	case err != nil:
		return change.Value{}, buf, err
	case v.null:
		return change.Value{State: change.Null}, buf, nil
	}
	start := len(buf)
	buf = appendValue(buf, p.root.typ, &v)
	return change.Value{State: change.AsText, Data: buf[start:len(buf):len(buf)]}, buf, nil
}

// begin takes the scratch of the last evaluation, or makes one if another
// goroutine has it.
func (p *Program) begin(row []change.Value) (*frame, error) {
	if len(row) < p.width {
		return nil, fault.Corrupted("a row of %d columns, the expression reads column %d", len(row), p.width)
	}
	f := p.spare.Swap(nil)
	if f == nil {
		f = new(frame)
	}
	f.row, f.buf = row, f.buf[:0]
	return f, nil
}

func (p *Program) end(f *frame) {
	f.row = nil
	if cap(f.buf) > maxKept {
		f.buf = nil
	}
	p.spare.Store(f)
}
