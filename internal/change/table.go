package change

import "strings"

// Name is a table's (or other relation's) qualified name, spelled exactly as the
// database stores it. It is never quoted here: quoting belongs to a dialect.
type Name struct{ Schema, Table string }

// String prints schema.table for people; it is not SQL.
func (n Name) String() string {
	if n.Schema == "" {
		return n.Table
	}
	return n.Schema + "." + n.Table
}

// Identity says which old column values a source logs with an update or delete.
type Identity byte

const (
	IdentityDefault Identity = 'd' // the primary key
	IdentityIndex   Identity = 'i' // a chosen unique index
	IdentityFull    Identity = 'f' // the whole old row
	IdentityNothing Identity = 'n' // none: updates and deletes cannot be followed
)

// Table is one layout of a source table. A new layout is a new *Table, so a
// pointer comparison tells whether the layout changed; fields are never written
// after the Table was handed on.
type Table struct {
	ID       uint32 // the source's own identifier (PostgreSQL: OID)
	Name     Name
	Identity Identity
	Columns  []Column
	FileLog  bool // its log is a row of numbered files: _lsn is Position.Number, not an LSN
}

// Column is one column of a source table's layout, in the log's column order.
type Column struct {
	Name     string
	Type     Type
	Key      bool // part of the replica identity as the log declares it
	Nullable bool // from the catalogue; true where unknown
}

// Kind is the logical kind of a type: what a destination decides its own type by.
type Kind uint8

const (
	Other       Kind = iota // anything not below; held as text in the source's notation
	Bool                    //
	Int16                   //
	Int32                   //
	Int64                   //
	Float32                 //
	Float64                 //
	Numeric                 // Precision and Scale; Precision 0 = unconstrained
	Text                    // text, varchar, char(n), name
	Bytes                   // bytea
	Date                    //
	Time                    // time of day without zone
	TimeTZ                  // time of day with zone
	Timestamp               // wall clock
	TimestampTZ             // instant
	Interval                //
	UUID                    //
	JSON                    // text kept as written
	JSONB                   // normalised
	Enum                    //
	Array                   // Elem says of what
	Range                   // ranges and multiranges
	Composite               //
)

// Type describes a column's type.
type Type struct {
	Kind      Kind
	Name      string // the source's own full spelling, e.g. `numeric(12,2)`, `public.mood`, `"MyType"[]`
	ID        uint32 // the source's identifier (PostgreSQL: type OID; for a domain, the domain's)
	BuiltIn   bool   // same identifier and same binary form on every server of that make (PostgreSQL: OID < 16384, and so all its parts)
	Precision int    // Numeric: digits, 0 = unconstrained
	Scale     int    // Numeric: digits after the point, may be negative
	Length    int    // Text: declared maximum in characters, 0 = none
	Elem      *Type  // Array: the element; a domain's Kind and fields are its base type's
	Domain    bool   // Name is a domain over the type that Kind describes
}

// EqualTypes reports whether two layouts have the same columns (names, types,
// order), so that the same statements serve both.
func (t *Table) EqualTypes(u *Table) bool {
	if len(t.Columns) != len(u.Columns) {
		return false
	}
	for i := range t.Columns {
		if t.Columns[i].Name != u.Columns[i].Name || t.Columns[i].Type.Name != u.Columns[i].Type.Name {
			return false
		}
	}
	return true
}

// Find returns the index of the column named name, exactly, or -1.
func (t *Table) Find(name string) int {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// ColumnNames returns the names in order, for messages.
func (t *Table) ColumnNames() string {
	names := make([]string, len(t.Columns))
	for i := range t.Columns {
		names[i] = t.Columns[i].Name
	}
	return strings.Join(names, ", ")
}
