package mysql

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// statement is the text of a query event.
type statement struct {
	text      string
	schema    string // the session's database
	noEscapes bool   // sql_mode NO_BACKSLASH_ESCAPES
}

// readStatement reads a query event: thread (4), time (4), length of the database's name
// (1), error (2), length of the status (2), the status, the name and a 0, the text.
func readStatement(data []byte, compressed bool) (s statement, ok bool) {
	const fixed = 13
	if len(data) < fixed {
		return s, false
	}
	name, status := int(data[8]), int(binary.LittleEndian.Uint16(data[11:]))
	if len(data) < fixed+status+name+1 {
		return s, false
	}
	vars := data[fixed : fixed+status]
	// The status begins with flags (code 0, 4 bytes) and sql_mode (code 1, 8 bytes).
	if len(vars) >= 5 && vars[0] == 0 {
		vars = vars[5:]
	}
	if len(vars) >= 9 && vars[0] == 1 {
		const noBackslashEscapes = 1 << 20
		s.noEscapes = binary.LittleEndian.Uint64(vars[1:])&noBackslashEscapes != 0
	}
	s.schema = string(data[fixed+status : fixed+status+name])
	text := data[fixed+status+name+1:]
	if compressed {
		var err error
		if text, err = inflate(text); err != nil {
			return s, false
		}
	}
	s.text = string(text)
	return s, true
}

// query takes a query event: the marks of a transaction, and statements.
func (f *follower) query(raw []byte, h header, before change.Position) error {
	const queryEvent = 2
	s, ok := readStatement(raw[headerBytes:], h.typ != queryEvent)
	if !ok {
		return fault.Corrupted("the log has a statement at %s that cannot be read", f.at())
	}
	began := time.Unix(int64(h.time), 0).UTC()
	word, rest := firstWord(s.text)
	if f.group.xa {
		switch next, _ := firstWord(rest); {
		case word == "SAVEPOINT", word == "ROLLBACK" && next == "TO":
			f.keep(raw)
			return nil
		case word == "ROLLBACK":
			f.group.xa, f.group.part = false, part{}
		}
	}
	switch word {
	case "BEGIN", "START":
		if !f.group.open {
			if err := f.open(before, gtid{}, began); err != nil {
				return err
			}
		}
		f.group.begun = true
		return nil
	case "COMMIT":
		if !f.group.open {
			return nil
		}
		return f.commit()
	case "ROLLBACK":
		if next, name := firstWord(rest); next == "TO" {
			return f.backTo(name)
		}
		if !f.group.open {
			return nil
		}
		if err := f.undo(0); err != nil {
			return err
		}
		return f.commit()
	case "SAVEPOINT":
		f.saved = append(f.saved, savepoint{name: strings.TrimSpace(rest), at: f.build.Ordinal})
		return nil
	case "RELEASE":
		return nil
	case "XA":
		next, id := firstWord(rest)
		if next == "END" {
			return nil
		}
		if !f.group.open {
			if err := f.open(before, gtid{}, began); err != nil {
				return err
			}
		}
		f.group.begun = true
		if next == "START" || next == "BEGIN" {
			f.beginPart()
			return nil
		}
		return f.xaEnd(id, next == "COMMIT")
	}
	if !f.group.open {
		if err := f.open(before, gtid{}, began); err != nil {
			return err
		}
	}
	if err := f.statement(s); err != nil {
		return err
	}
	if f.group.begun {
		return nil
	}
	return f.commit()
}

// backTo undoes what was written since a savepoint.
func (f *follower) backTo(name string) error {
	if next, rest := firstWord(name); next == "SAVEPOINT" {
		name = rest
	}
	name = strings.TrimSpace(name)
	for i := len(f.saved) - 1; i >= 0; i-- {
		if f.saved[i].name == name {
			f.saved = f.saved[:i+1]
			return f.undo(f.saved[i].at)
		}
	}
	return nil // before any change of ours
}

// firstWord splits a text behind its first word, which it returns in upper case;
// comments in front are passed over.
func firstWord(text string) (word, rest string) {
	text = strings.TrimLeft(text, " \t\r\n(")
	for strings.HasPrefix(text, "/*") && !strings.HasPrefix(text, "/*!") && !strings.HasPrefix(text, "/*M!") {
		_, after, _ := strings.Cut(text, "*/")
		text = strings.TrimLeft(after, " \t\r\n(")
	}
	end := strings.IndexFunc(text, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_') })
	if end < 0 {
		end = len(text)
	}
	return strings.ToUpper(text[:end]), text[end:]
}

// statement takes any other statement. What it does to rows of followed tables without
// logging them is looked for; of everything else only that it may have changed layouts.
func (f *follower) statement(st statement) error {
	s := f.source
	words := lex(st.text, st.noEscapes)
	if len(words) == 0 || f.group.had {
		return nil
	}
	switch words[0].upper() {
	case "INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "MERGE", "WITH", "CALL", "DO", "SELECT":
		for _, w := range words {
			if w.is == wordOf && s.followsTable(w.text) {
				return fault.Refuse("SET GLOBAL binlog_format = 'ROW', end the sessions that have another, then `tailrace run --overwrite`",
					"the log holds a statement at %s that names followed table %s, in place of the rows it wrote: a session of the source has set binlog_format", f.at(), w.text)
			}
		}
		return nil
	}
	s.forgetCatalog()
	for _, e := range effects(words, st.schema) {
		if e.what == tableTruncated {
			if err := f.truncate(e.table); err != nil {
				return err
			}
			continue
		}
		if e.table.Table == "" { // a whole database
			for _, n := range s.followedIn(e.table.Schema) {
				return s.lost(n, "make the database again, or take its flows out of the configuration", "database %s was dropped in the source, at %s of its log", n.Schema, f.at())
			}
			continue
		}
		if !s.follows(e.table) {
			continue
		}
		switch e.what {
		case tableDropped:
			return s.lost(e.table, "make it again, or take its flow out of the configuration", "table %s was dropped in the source, at %s of its log", e.table, f.at())
		case tableRenamed:
			return s.lost(e.table, "have the flow name the table as it is now", "table %s was renamed in the source, at %s of its log", e.table, f.at())
		case tableReplaced:
			return s.lost(e.table, "", "table %s was replaced by table %s in the source, at %s of its log: its rows are others now", e.table, e.by, f.at())
		case rowsRemoved:
			return s.lost(e.table, "", "partitions or the tablespace of table %s were removed or exchanged in the source, at %s of its log: their rows are not in it", e.table, f.at())
		}
	}
	return nil
}

// truncate makes the change of a TRUNCATE.
func (f *follower) truncate(n change.Name) error {
	s := f.source
	if !s.follows(n) {
		return nil
	}
	s.mu.Lock()
	t := s.tables[n]
	s.mu.Unlock()
	if t == nil {
		d, err := s.describe(f.ctx, n, false)
		if err != nil || d == nil {
			return err // dropped since
		}
		t = s.sameTable(newTable(d, s.layoutOptions()))
	}
	f.build.Add(change.Change{Op: change.Truncate, Table: t}, 0)
	return nil
}

// followsTable reports whether a followed table is called so, in any schema.
func (s *Source) followsTable(table string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followed == nil {
		return true
	}
	for n := range s.followed {
		if strings.EqualFold(n.Table, table) {
			return true
		}
	}
	return false
}

func (s *Source) followedIn(schema string) (names []change.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.followed {
		if n.Schema == schema {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, func(a, b change.Name) int { return strings.Compare(a.Table, b.Table) })
	return names
}

// What a statement does to a table, as far as its rows are concerned.
type effectKind uint8

const (
	tableTruncated effectKind = iota
	tableDropped
	tableRenamed
	tableReplaced
	rowsRemoved
)

type effect struct {
	what  effectKind
	table change.Name // Table empty: all of the schema
	by    change.Name // tableReplaced: by which
}

// effects reads what a statement of definition does to the rows of tables. Statements
// that it does not understand have none: they are never an error.
func effects(words []word, schema string) []effect {
	p := parser{words: words, schema: schema}
	switch first := p.next(); first.upper() {
	case "TRUNCATE":
		p.skip("TABLE")
		if n, ok := p.name(); ok {
			return []effect{{what: tableTruncated, table: n}}
		}
	case "DROP":
		if p.skip("DATABASE") || p.skip("SCHEMA") {
			p.skipIfExists()
			if w := p.next(); w.is == wordOf {
				return []effect{{what: tableDropped, table: change.Name{Schema: w.text}}}
			}
			return nil
		}
		if p.skip("TEMPORARY") || !p.skip("TABLE") && !p.skip("TABLES") {
			return nil
		}
		p.skipIfExists()
		return p.list(tableDropped)
	case "CREATE":
		if p.skip("OR") && p.skip("REPLACE") && p.skip("TABLE") {
			if n, ok := p.name(); ok {
				return []effect{{what: tableDropped, table: n}}
			}
		}
	case "RENAME":
		if p.skip("TABLE") || p.skip("TABLES") {
			p.skipIfExists()
			return p.renames()
		}
	case "ALTER":
		p.skip("ONLINE")
		p.skip("IGNORE")
		if p.skip("TABLE") {
			p.skipIfExists()
			return p.alter()
		}
	}
	return nil
}

func (p *parser) list(what effectKind) (all []effect) {
	for {
		n, ok := p.name()
		if !ok {
			return all
		}
		all = append(all, effect{what: what, table: n})
		if !p.skip(",") {
			return all
		}
	}
}

// renames reads the pairs of RENAME TABLE, which happen one after the other.
func (p *parser) renames() (all []effect) {
	now := map[change.Name]change.Name{} // which table (by its name before) has a name now
	var sources []change.Name
	for {
		from, ok := p.name()
		if !ok {
			break
		}
		for p.skip("WAIT") || p.skip("NOWAIT") || p.skipNumber() {
		}
		if !p.skip("TO") {
			break
		}
		to, ok := p.name()
		if !ok {
			break
		}
		was := from
		if earlier, moved := now[from]; moved {
			was = earlier
		} else {
			sources = append(sources, from)
		}
		delete(now, from)
		now[to] = was
		if !p.skip(",") {
			break
		}
	}
	for _, n := range sources {
		switch by, taken := now[n]; {
		case !taken:
			all = append(all, effect{what: tableRenamed, table: n})
		case by != n && !madeFrom(n, by):
			all = append(all, effect{what: tableReplaced, table: n, by: by})
		}
	}
	return all
}

// madeFrom reports whether a table was made as the new form of another by a tool of
// online schema changes, which keeps the rows the same: gh-ost, pt-online-schema-change,
// spirit, LHM, OSC.
func madeFrom(n, by change.Name) bool {
	if n.Schema != by.Schema {
		return false
	}
	switch by.Table {
	case "_" + n.Table + "_gho", "_" + n.Table + "_new", "__" + n.Table + "_new", "lhmn_" + n.Table, "__osc_new_" + n.Table:
		return true
	}
	return false
}

// alter reads ALTER TABLE for what concerns rows or the table's name.
func (p *parser) alter() []effect {
	n, ok := p.name()
	if !ok {
		return nil
	}
	for w := p.next(); w.is != wordEnd; w = p.next() {
		if w.is != wordOf || w.quoted {
			continue
		}
		switch w.upper() {
		case "RENAME":
			if p.skip("COLUMN") || p.skip("INDEX") || p.skip("KEY") || p.skip("CONSTRAINT") {
				continue
			}
			if !p.skip("TO") && !p.skip("AS") {
				p.skip("=")
			}
			if to, ok := p.name(); ok && to != n {
				return []effect{{what: tableRenamed, table: n}}
			}
		case "DROP", "TRUNCATE", "EXCHANGE", "CONVERT":
			if p.skip("PARTITION") {
				return []effect{{what: rowsRemoved, table: n}}
			}
		case "DISCARD", "IMPORT":
			if p.skip("TABLESPACE") || p.skip("PARTITION") {
				return []effect{{what: rowsRemoved, table: n}}
			}
		}
	}
	return nil
}
