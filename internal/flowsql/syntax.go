package flowsql

import "strings"

// File is a SQL file and the statements in it, as Parse leaves them.
type File struct {
	Name       string // for messages
	Text       string
	Statements []Statement
}

// Statement is one of *CreateTable, *CreateFlow, *CreateView, *CreateSchema and *Use.
type Statement interface{ place() (from, to Pos) }

// Span is where a statement's head or another piece stands in its file.
type Span struct{ From, To Pos }

func (s Span) place() (from, to Pos) { return s.From, s.To }

// Name is one identifier. Case is kept; what it names is found without regard to case,
// an exact match first.
type Name struct {
	Span
	Text   string
	Quoted bool // it stood in backticks or double quotes
}

// Path is a name of up to three parts: catalog, schema, table.
type Path []Name

// String is the path for messages: as it would be written.
func (p Path) String() string {
	parts := make([]string, len(p))
	for i := range p {
		parts[i] = p[i].sql()
	}
	return strings.Join(parts, ".")
}

func (p Path) span() Span {
	return Span{p[0].From, p[len(p)-1].To}
}

// String is a string literal as written, with its quotes.
type String struct {
	Span
	Raw string
}

// Value is what the literal means.
func (s *String) Value() string { return unquoteString(s.Raw) }

// Text is an expression: its words, in order. Expressions are not taken apart here: what
// reads conditions and projections is internal/expr, and what renders a query knows the
// engine that it is for. Both want the words with their places. The queries in it are
// parsed, because they say what is read.
type Text struct {
	Span
	words   []token
	Queries []*Query
}

// String is the canonical text: comments are gone, and blanks are single.
func (t *Text) String() string {
	var b strings.Builder
	for i := range t.words {
		if i > 0 && t.words[i].blank && !tight(t.words[i-1], t.words[i]) {
			b.WriteByte(' ')
		}
		b.WriteString(t.words[i].text)
	}
	return b.String()
}

// tight reports whether two words stand together, whatever stood between them.
func tight(before, w token) bool {
	return before.is("(") || before.is("[") || w.is(")") || w.is("]") || w.is(",")
}

// CreateTable is CREATE STREAMING TABLE.
type CreateTable struct {
	Span
	OrRefresh, Private, IfNotExists bool
	Name                            Path
	Columns                         []Column
	Expectations                    []Expectation
	Constraints                     []Constraint
	Clauses                         Clauses
	Flow                            *Body  // FLOW ..., or
	Query                           *Query // AS query
}

// Column is a declared column.
type Column struct {
	Name Name
	Type string // canonical; empty if there is none
	Span        // of the whole definition
	// What stands behind the type, in the order of the file: the words of each property.
	Properties []ColumnProperty
}

// ColumnProperty is one property of a column; Kind says which.
type ColumnProperty struct {
	Span
	Kind string // NOT NULL, COMMENT, DEFAULT, GENERATED, MASK, PRIMARY KEY, REFERENCES
	Text string // the whole property in canonical form
}

// Expectation is CONSTRAINT name EXPECT (condition).
type Expectation struct {
	Span
	Name      Name
	Condition Text
	Action    string // DROP ROW, FAIL UPDATE, or empty
}

// Constraint is a PRIMARY KEY or FOREIGN KEY, in canonical form.
type Constraint struct {
	Span
	Text string
}

// Clauses are those of a table, a view or a materialized view.
type Clauses struct {
	Using       *Name // DELTA
	Partitioned []Name
	Cluster     *Cluster
	Location    *String
	Comment     *String
	Properties  []Property
	Collation   *Name
	Filter      *Filter
	Schedule    *Schedule
}

// Cluster is CLUSTER BY.
type Cluster struct {
	Span
	Word  string // AUTO or NONE; empty: Names
	Names []Name
}

// Property is one of TBLPROPERTIES. Value is a literal as written.
type Property struct {
	Span
	Key   string
	Value token
}

// Filter is WITH ROW FILTER function ON (columns).
type Filter struct {
	Span
	Function Path
	On       []Name
}

// Schedule is when a table is brought up to date.
type Schedule struct {
	Span
	Every   int // so many Units, or
	Unit    string
	Cron    *String // in Quartz' form, or
	Zone    *String
	Trigger bool // TRIGGER ON UPDATE
	AtMost  *Text
}

// CreateFlow is CREATE FLOW and APPLY CHANGES INTO, which has no name.
type CreateFlow struct {
	Span
	Name    Path
	Comment *String
	Target  Path
	Body    Body
}

// Body is what a flow does: one of the three is not nil.
type Body struct {
	Span
	Once     bool
	CDC      *CDC
	Snapshot *Snapshot
	Insert   *Insert
}

// CDC is AUTO CDC from a change feed. Clauses that were left out are nil or empty.
type CDC struct {
	Source           Source
	Keys             []Name
	IgnoreNull       *Selection // All is the clause without ON
	DeleteWhen       *Text
	TruncateWhen     *Text
	SequenceBy       *Sequence
	SystemSequenceBy *Sequence
	Columns          *Selection
	StoredAs         *StoredAs
	TrackHistory     *Selection
	ColumnsToUpdate  *Name
}

// Snapshot is AUTO CDC FROM SNAPSHOT.
type Snapshot struct {
	From         Relation
	Version      *Query
	Keys         []Name
	StoredAs     *StoredAs
	TrackHistory *Selection
}

// Insert is an append flow.
type Insert struct {
	ReplaceWhere *Text
	ReplaceUsing []Name
	SequenceBy   *Name // of ReplaceUsing
	Query        *Query
}

// Selection is a list of columns, or * with or without exceptions.
type Selection struct {
	Span
	All   bool // *: Names are the exceptions
	Names []Name
}

// Sequence is one column, a STRUCT of some, or another expression.
type Sequence struct {
	Span
	Struct bool
	Names  []Name
	Other  *Text
}

// StoredAs is SCD TYPE 1, SCD TYPE 2 or BITEMPORAL.
type StoredAs struct {
	Span
	Type int // as in flow.Spec
}

// Source is what a change feed is read from.
type Source struct {
	Span
	Stream bool // it stands behind STREAM
	Relation
}

// Relation is a table, a function of tables, or a query: one of the three.
type Relation struct {
	Table    Path
	Function *Call
	Query    *Query
}

// Call is a function that gives a relation.
type Call struct {
	Span
	Name Path
	Args []Arg
}

// Arg is one of its arguments.
type Arg struct {
	Name  *Name // nil: by its place
	Value Text
}

// Query is a SELECT with what may stand around it.
type Query struct {
	Span
	words   []token
	With    []CTE
	Selects []Select // more than one are joined by Sets
	Sets    []string // UNION, UNION ALL, ...: one less than Selects
	OrderBy []Text
	Limit   *Text
}

// String is the canonical text.
func (q *Query) String() string {
	t := Text{words: q.words}
	return t.String()
}

// CTE is one name of WITH.
type CTE struct {
	Name    Name
	Columns []Name
	Query   *Query
}

// Select is one SELECT, or a query in parentheses.
type Select struct {
	Span
	Nested   *Query // (query): then nothing else
	Distinct bool
	Items    []Item
	From     []From
	Where    *Text
	GroupBy  []Text
	Having   *Text
}

// Item is one column of a SELECT.
type Item struct {
	Star   bool // *: then with Except
	Except []Name
	Value  Text
	Alias  *Name
}

// From is one relation of a FROM clause.
type From struct {
	Join string // how it is joined with what stands before: empty, a comma, JOIN, LEFT JOIN, ...
	Source
	Alias   *Name
	Columns []Name
	On      *Text
	Using   []Name
}

// CreateView is CREATE VIEW and CREATE MATERIALIZED VIEW.
type CreateView struct {
	Span
	Materialized, Temporary, Private bool
	Or                               string // REFRESH, REPLACE or empty
	IfNotExists                      bool
	Name                             Path
	Columns                          []Column
	Expectations                     []Expectation
	Constraints                      []Constraint
	Clauses                          Clauses
	Query                            *Query
}

// CreateSchema is CREATE SCHEMA; a destination makes the schemas of its targets anyway.
type CreateSchema struct {
	Span
	IfNotExists bool
	Name        Path
	Comment     *String
}

// Use sets the catalog or schema of names that have none, in the rest of its file.
type Use struct {
	Span
	Catalog bool
	Name    Path
}
