package mysql

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// tableID numbers a table by its name. The server has no number that lives as long as
// the table: every ALTER TABLE may give another.
func tableID(n change.Name) uint32 {
	h := fnv.New32a()
	h.Write([]byte(n.Schema + "\x00" + n.Table))
	return max(h.Sum32(), 1)
}

// described is a table as the catalogue describes it.
type described struct {
	name    change.Name
	columns []definition
	key     []string // of the primary key, in its order
}

// newTable makes the layout that the pipeline sees. Under binlog_row_image FULL the old
// row is logged whole, with every update and delete.
func newTable(d *described, o *layoutOptions) *change.Table {
	t := &change.Table{ID: tableID(d.name), Name: d.name, Identity: change.IdentityFull, FileLog: true}
	if !o.full {
		t.Identity = change.IdentityDefault
		if len(d.key) == 0 {
			t.Identity = change.IdentityFull // the server logs every column of a table without a key
		}
	}
	for i := range d.columns {
		c := &d.columns[i]
		t.Columns = append(t.Columns, change.Column{Name: c.name, Type: c.destinationType(o.zeroDates),
			Key: t.Identity == change.IdentityFull || slices.Contains(d.key, c.name), Nullable: c.nullable || o.zeroDates == ZeroDatesNull && c.dated() && !slices.Contains(d.key, c.name)})
	}
	return t
}

// layoutOptions are what a layout depends on beside the table.
type layoutOptions struct {
	zeroDates string
	full      bool // the server logs whole rows
}

// column is one column of a table as the log has it.
type column struct {
	def   definition
	typ   byte
	meta  uint16
	text  *transcoder
	label [][]byte // enum, set: in UTF-8
	key   bool     // part of the primary key

	asText bool // dates: a text in the destination
}

// layout is one table map of the log: what the row images behind it hold.
type layout struct {
	id      uint64 // the number that row events name
	raw     []byte // the table map, without its header
	version uint64 // of what is followed; another one means that the layout must be made anew
	table   *change.Table
	columns []column
	zero    string // what to do with zero dates
	keyed   bool   // there is a primary key
}

// layouts are those that row events may name now.
type layouts struct {
	byID map[uint64]*layout
	last *layout // the one used last
}

// find returns the layout, nil if the table is not followed.
func (l *layouts) find(id uint64) (_ *layout, known bool) {
	if l.last != nil && l.last.id == id {
		return l.last, true
	}
	found, known := l.byID[id]
	l.last = found
	return found, known
}

func (l *layouts) forget() { l.byID, l.last = map[uint64]*layout{}, nil }

// tableMap takes a table map: data is the event without header.
func (f *follower) tableMap(ctx context.Context, raw, data []byte) error {
	if len(data) < 10 {
		return fault.Corrupted("the log has a table map of %d bytes", len(data))
	}
	id := uintAt(data, 6)
	version := f.source.followedVersion()
	if known := f.layouts.byID[id]; known != nil && known.version == version && bytes.Equal(known.raw, data) {
		f.layouts.last = known
		return nil
	}
	event, err := f.parser.Parse(raw)
	if err != nil {
		return fault.Corrupted("read a table map of the log after %s: %v", f.at(), err)
	}
	m, ok := event.Event.(*replication.TableMapEvent)
	if !ok {
		return fault.Corrupted("the log's table map is something else")
	}
	l := &layout{id: id, version: version, raw: bytes.Clone(data)}
	name := change.Name{Schema: string(m.Schema), Table: string(m.Table)}
	if f.source.follows(name) {
		if err := f.describe(ctx, name, m, l); err != nil {
			return err
		}
	}
	f.layouts.byID[id] = l
	f.layouts.last = l
	return nil
}

// describe makes the layout of a followed table. The log's own description counts, as far
// as it goes; the catalogue, which shows the table as it is now, adds what the log
// leaves out, if it still describes the same columns.
func (f *follower) describe(ctx context.Context, name change.Name, m *replication.TableMapEvent, l *layout) error {
	d, err := f.source.describe(ctx, name, false)
	if err == nil && !matches(d, m) {
		d, err = f.source.describe(ctx, name, true)
	}
	if err != nil {
		return err
	}
	if !matches(d, m) {
		if len(m.ColumnName) == 0 {
			return f.source.lost(name, "SET GLOBAL binlog_row_metadata = 'FULL' on the source",
				"table %s was altered, and the log holds a row in its former layout, of which it has no column names (binlog_row_metadata is not FULL)", name)
		}
		if d, err = f.fromLog(name, m, d); err != nil {
			return err
		}
	}
	return f.source.finish(l, d, m)
}

// matches reports whether the catalogue describes the columns of a table map.
func matches(d *described, m *replication.TableMapEvent) bool {
	if d == nil || len(d.columns) != int(m.ColumnCount) {
		return false
	}
	for i := range d.columns {
		if !d.columns[i].logged(m.ColumnType[i], m.ColumnMeta[i]) || len(m.ColumnName) > 0 && d.columns[i].name != string(m.ColumnName[i]) {
			return false
		}
	}
	return true
}

// fromLog describes a table by the log's metadata alone, and by those columns of the
// catalogue that are the same still.
func (f *follower) fromLog(name change.Name, m *replication.TableMapEvent, now *described) (*described, error) {
	d := &described{name: name}
	unsigned, collations := unsignedIn(m), m.CollationMap()
	enums, sets := m.EnumStrValueMap(), m.SetStrValueMap()
	for i := range int(m.ColumnCount) {
		c := definition{name: string(m.ColumnName[i]), nullable: true, unsigned: unsigned[i]}
		if now != nil {
			if at := slices.IndexFunc(now.columns, func(o definition) bool { return o.name == c.name && o.logged(m.ColumnType[i], m.ColumnMeta[i]) }); at >= 0 {
				d.columns = append(d.columns, now.columns[at])
				continue
			}
		}
		c.charset = f.source.charsetOf(collations[i])
		if err := c.fromLog(m.ColumnType[i], m.ColumnMeta[i], c.charset == "binary", f.source.bytesPerCharacter(collations[i]), enums[i], sets[i]); err != nil {
			return nil, fmt.Errorf("describe column %s of table %s: %w", c.name, name, err)
		}
		d.columns = append(d.columns, c)
	}
	for _, at := range m.PrimaryKey {
		if at < uint64(len(d.columns)) {
			d.key = append(d.key, d.columns[at].name)
		}
	}
	return d, nil
}

// fromLog fills in what a table map says of a column.
func (d *definition) fromLog(typ byte, meta uint16, binary bool, perCharacter int, enum, set []string) error {
	switch typ {
	case typeTiny, typeShort, typeInt24, typeLong, typeLongLong:
		d.kind, d.width = integer, map[byte]int{typeTiny: 1, typeShort: 2, typeInt24: 3, typeLong: 4, typeLongLong: 8}[typ]
	case typeFloat:
		d.kind = float32Kind
	case typeDouble:
		d.kind = float64Kind
	case typeNewDecimal:
		d.kind, d.precision, d.scale = decimalKind, int(meta>>8), int(meta&0xff)
	case typeBit:
		d.kind, d.precision = bitKind, int(meta>>8)*8+int(meta&0xff)
	case typeYear:
		d.kind = yearKind
	case typeDate:
		d.kind = dateKind
	case typeDatetime, typeDatetime2:
		d.kind, d.precision = datetimeKind, int(meta)
	case typeTimestamp, typeTimestamp2:
		d.kind, d.precision = timestampKind, int(meta)
	case typeTime, typeTime2:
		d.kind, d.precision = timeKind, int(meta)
	case typeJSON:
		d.kind = jsonKind
	case typeGeometry:
		d.kind = geometryKind
	case typeVector:
		d.kind = bytesKind
	case typeVarchar, typeVarString, typeBlob, typeString:
		real := byte(meta>>8) | 0x30
		switch {
		case typ == typeString && real == typeEnum:
			d.kind, d.labels = enumKind, enum
			return nil
		case typ == typeString && real == typeSet:
			d.kind, d.labels = setKind, set
			return nil
		}
		d.kind, d.fixed = textKind, typ == typeString
		if binary {
			d.kind = bytesKind
		}
		if typ != typeBlob {
			n := int(meta)
			if typ == typeString {
				n = stringLength(meta)
			}
			d.length = n / max(perCharacter, 1)
		}
	default:
		return fault.Refuse("leave the table out of the flows", "the log has a column of type %d, which cannot be read", typ)
	}
	return nil
}

// stringLength is the largest size of a column of MYSQL_TYPE_STRING, whose two upper
// bits hide in its real type.
func stringLength(meta uint16) int {
	high := byte(meta >> 8)
	return int(meta&0xff) | int((high&0x30)^0x30)<<4
}

// unsignedIn says which columns of a table map are unsigned; nil where it does not say.
// There is a bit for each numeric column, and servers count YEAR as one; the library does
// not, and is wrong about every column behind it.
func unsignedIn(m *replication.TableMapEvent) []bool {
	if len(m.SignednessBitmap) == 0 {
		return nil
	}
	unsigned, n := make([]bool, m.ColumnCount), 0
	for i := range unsigned {
		switch m.ColumnType[i] {
		case typeTiny, typeShort, typeInt24, typeLong, typeLongLong, typeNewDecimal, typeFloat, typeDouble, typeYear:
			if n/8 < len(m.SignednessBitmap) {
				unsigned[i] = m.SignednessBitmap[n/8]&(0x80>>(n%8)) != 0
			}
			n++
		}
	}
	return unsigned
}

// finish fills in the layout of a table map whose columns d describes.
func (s *Source) finish(l *layout, d *described, m *replication.TableMapEvent) error {
	unsigned, collations, enumCollations := unsignedIn(m), m.CollationMap(), m.EnumSetCollationMap()
	enums, sets := m.EnumStrValueMap(), m.SetStrValueMap()
	now := *d
	now.columns = slices.Clone(d.columns)
	l.columns = make([]column, len(now.columns))
	l.zero, l.keyed = s.cfg.ZeroDates, len(d.key) > 0
	for i := range now.columns {
		c := &now.columns[i]
		if unsigned != nil && c.kind == integer {
			c.unsigned = unsigned[i]
		}
		if id, ok := collations[i]; ok && s.charsetOf(id) != "" {
			c.charset = s.charsetOf(id)
		}
		if id, ok := enumCollations[i]; ok && s.charsetOf(id) != "" {
			c.charset = s.charsetOf(id)
		}
		own := column{typ: m.ColumnType[i], meta: m.ColumnMeta[i], key: slices.Contains(d.key, c.name), asText: c.dated() && s.cfg.ZeroDates == ZeroDatesText}
		known := true
		switch c.kind {
		case textKind, enumKind, setKind:
			own.text, known = newTranscoder(c.charset)
		}
		if !known {
			return s.lost(d.name, fmt.Sprintf("ALTER TABLE %s MODIFY the column to CHARACTER SET utf8mb4, or leave it out with except_column_list", quoted(d.name)),
				"column %s of table %s has character set %s, which cannot be read from the log", c.name, d.name, c.charset)
		}
		labels, inLog := enums[i], enums[i] != nil
		if c.kind == setKind {
			labels, inLog = sets[i], sets[i] != nil
		}
		if inLog { // in the column's character set; the catalogue has them in UTF-8
			c.labels = labels
		}
		for _, label := range c.labels {
			b := []byte(label)
			if inLog && own.text != nil {
				var err error
				if b, err = own.text.append(nil, b); err != nil {
					return fault.Corrupted("a label of column %s of table %s is no %s", c.name, d.name, c.charset)
				}
			}
			own.label = append(own.label, b)
		}
		own.def = *c
		l.columns[i] = own
	}
	l.table = s.sameTable(newTable(&now, s.layoutOptions()))
	return nil
}

// sameTable returns the layout that was handed on before, if it is the same: the caller
// compares pointers.
func (s *Source) sameTable(t *change.Table) *change.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.tables[t.Name]; known != nil && known.Identity == t.Identity && slices.Equal(known.Columns, t.Columns) {
		return known
	}
	s.tables[t.Name] = t
	return t
}

func quote(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func quoted(n change.Name) string { return quote(n.Schema) + "." + quote(n.Table) }
