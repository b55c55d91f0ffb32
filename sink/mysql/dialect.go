package mysql

import (
	"fmt"
	"strings"

	"tailrace/scd"
)

// This file is text alone: every statement about a target is a function of its shape.
// testdata/sql shows them all.
//
// Rows travel as constants of a statement, or as the lines of a LOAD DATA. Where stored
// rows are asked for, their keys stand in a derived table q: the number n of the key in
// what was asked for, and its columns k0, k1, ... The target's index is descended for
// each of them, whatever the optimizer would like better for a table of its size.

var (
	startColumn = quote(scd.StartColumn)
	endColumn   = quote(scd.EndColumn)
)

// list joins what f makes of every column that we write and want wants; generated
// columns are left to the destination.
func (sh *shape) list(want func(*column) bool, f func(c *column) string) string {
	var parts []string
	for i := range sh.columns {
		if c := &sh.columns[i]; !c.generated && want(c) {
			parts = append(parts, f(c))
		}
	}
	return strings.Join(parts, ", ")
}

func all(*column) bool         { return true }
func notKey(c *column) bool    { return !c.key }
func isKey(c *column) bool     { return c.key }
func untracked(c *column) bool { return !c.key && !c.tracked }

func named(c *column) string { return c.name }

// sent sets a column to what the row that met its key was to hold.
func sent(c *column) string { return c.name + " = VALUES(" + c.name + ")" }

// columnList is the columns we write, in target order, of type 2 with start and end.
func (sh *shape) columnList() string {
	list := sh.list(all, named)
	if sh.target.Kind == scd.Type2 {
		list += ", " + startColumn + ", " + endColumn
	}
	return list
}

// insertSQL begins and ends a statement that writes rows. An upsert meets no other
// unique index than the key's: there is none where it is used.
func (sh *shape) insertSQL(upsert bool) (head, tail string) {
	head = fmt.Sprintf("INSERT INTO %s (%s) VALUES ", sh.name, sh.columnList())
	if !upsert || len(sh.keys) == 0 {
		return head, ""
	}
	set := sh.list(notKey, sent)
	if set == "" {
		set = sh.columns[sh.keys[0]].name + " = " + sh.columns[sh.keys[0]].name
	}
	return head, " ON DUPLICATE KEY UPDATE " + set
}

// endSQL begins and ends a statement that gives stored versions, named by key and start,
// another end, with free also other values of the columns that are not tracked. The
// versions are there, so that nothing is inserted.
func (sh *shape) endSQL(free bool) (head, tail string) {
	list, set := sh.list(isKey, named)+", "+startColumn+", "+endColumn, sent(&sh.end)
	if free {
		list, set = list+", "+sh.list(untracked, named), set+", "+sh.list(untracked, sent)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES ", sh.name, list), " ON DUPLICATE KEY UPDATE " + set
}

// loadSQL loads rows from the reader of a name. Its constants are a tab, a backslash and
// a newline themselves: in our sessions the backslash is a letter like others.
func (sh *shape) loadSQL(reader string, replace bool) string {
	how := ""
	if replace {
		how = "REPLACE "
	}
	return loadSQL(reader, how+"INTO TABLE "+sh.name, sh.columnList())
}

func loadSQL(reader, into, list string) string {
	return fmt.Sprintf("LOAD DATA LOCAL INFILE 'Reader::%s' %s CHARACTER SET binary FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (%s)", reader, into, list)
}

// keyTuple is the key's columns, as a row where there are several; with start also that.
func (sh *shape) keyTuple(alias string, start bool) string {
	var parts []string
	for _, k := range sh.keys {
		parts = append(parts, alias+sh.columns[k].name)
	}
	if start {
		parts = append(parts, alias+startColumn)
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// deleteSQL begins a statement that deletes keys, with start versions; behind it comes
// their list.
func (sh *shape) deleteSQL(start bool) (head, tail string) {
	return fmt.Sprintf("DELETE t FROM %s AS t FORCE INDEX (%s) WHERE %s IN (", sh.name, sh.index, sh.keyTuple("t.", start)), ")"
}

// lockSQL begins and ends a statement that locks keys' rows and counts them; between them
// comes their list.
func (sh *shape) lockSQL() (head, tail string) {
	return fmt.Sprintf("SELECT COUNT(*) FROM %s AS t FORCE INDEX (%s) WHERE %s IN (", sh.name, sh.index, sh.keyTuple("t.", false)), ") FOR UPDATE"
}

// patchSQL begins and ends a statement that gives rows which are there other values of
// the columns that present wants.
func (sh *shape) patchSQL(present func(*column) bool) (head, tail string) {
	set := sh.list(func(c *column) bool { return !c.key && present(c) }, sent)
	if set == "" { // they are there
		name := sh.columns[sh.keys[0]].name
		set = name + " = " + sh.name + "." + name
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES ", sh.name, sh.list(present, named)), " ON DUPLICATE KEY UPDATE " + set
}

// countSQL begins a statement that counts versions; behind it comes their list.
func (sh *shape) countSQL() (head, tail string) {
	return fmt.Sprintf("SELECT COUNT(*) FROM %s AS t FORCE INDEX (%s) WHERE %s IN (", sh.name, sh.index, sh.keyTuple("t.", true)), ")"
}

// onKeys joins rows of alias with the keys of q.
func (sh *shape) onKeys(alias string) string {
	var parts []string
	for n, k := range sh.keys {
		parts = append(parts, fmt.Sprintf("%s.%s = q.k%d", alias, sh.columns[k].name, n))
	}
	return strings.Join(parts, " AND ")
}

// onNewest is onKeys for the newest version of each key, one descent of the index away
// however many versions the key has.
func (sh *shape) onNewest() string {
	return fmt.Sprintf("%s AND t.%s = (SELECT m.%[2]s FROM %s AS m FORCE INDEX (%s) WHERE %s ORDER BY m.%[2]s DESC LIMIT 1)",
		sh.onKeys("t"), startColumn, sh.name, sh.index, sh.onKeys("m"))
}

// fetchSQL begins and ends a statement that reads, of each key, its number and its row,
// of type 2 its newest version with start and end; between them comes the list of keys.
func (sh *shape) fetchSQL() (head, tail string) {
	list := sh.list(notKey, func(c *column) string { return c.read("t.") })
	on := sh.onKeys("t")
	if sh.target.Kind == scd.Type2 {
		list = strings.TrimSuffix("t."+startColumn+", t."+endColumn+", "+list, ", ")
		on = sh.onNewest()
	}
	if list != "" {
		list = ", " + list
	}
	return fmt.Sprintf("SELECT q.n%s FROM (", list), fmt.Sprintf(") AS q STRAIGHT_JOIN %s AS t FORCE INDEX (%s) ON %s", sh.name, sh.index, on)
}

// truncateVersionsSQL ends every open version at an instant.
func (sh *shape) truncateVersionsSQL(at int64) string {
	return fmt.Sprintf("UPDATE %s SET %s = GREATEST(TIMESTAMP'%s', %s + INTERVAL 1 MICROSECOND) WHERE %[2]s IS NULL", sh.name, endColumn, appendInstant(nil, at), startColumn)
}

// The record of a source transaction that comes in pieces: for each key it has touched,
// the newest version as it was before (start NULL: there was none). It is a temporary
// table, which these servers make and drop without a commit.

func (sh *shape) createRecordSQL() string {
	var lines []string
	for i := range sh.columns {
		if c := &sh.columns[i]; !c.generated {
			null := " NULL"
			if c.key {
				null = " NOT NULL"
			}
			lines = append(lines, c.name+" "+c.definition()+null)
		}
	}
	lines = append(lines, startColumn+" "+sh.start.definition()+" NULL", endColumn+" "+sh.end.definition()+" NULL", "PRIMARY KEY ("+sh.list(isKey, named)+")")
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s (\n  %s\n) ENGINE = InnoDB", sh.record, strings.Join(lines, ",\n  "))
}

// definition is a column's type as a definition has it.
func (c *column) definition() string {
	if c.typ.store == asChars {
		return c.typ.String() + " CHARACTER SET utf8mb4 COLLATE " + c.collation
	}
	return c.typ.String()
}

// rememberSQL begins and ends a statement that records the newest versions of keys that
// an earlier piece has not.
func (sh *shape) rememberSQL() (head, tail string) {
	n := -1
	list := sh.list(all, func(c *column) string {
		if c.key {
			n++
			return fmt.Sprintf("q.k%d", n)
		}
		return "t." + c.name
	})
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s, t.%s, t.%s FROM (", sh.record, sh.columnList(), list, startColumn, endColumn),
		fmt.Sprintf(") AS q LEFT JOIN %s AS t FORCE INDEX (%s) ON %s ON DUPLICATE KEY UPDATE %[4]s.%s = %[4]s.%[5]s", sh.name, sh.index, sh.onNewest(), sh.record, startColumn)
}

// rememberOpenSQL records every open version, before a truncate ends them.
func (sh *shape) rememberOpenSQL() string {
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %[2]s FROM %s AS t WHERE t.%s IS NULL ON DUPLICATE KEY UPDATE %[1]s.%[5]s = %[1]s.%[5]s", sh.record, sh.columnList(), sh.name, endColumn, startColumn)
}

// undoSQL takes back what this source transaction has done to the keys of q, or with
// whole to every key: what it began goes, and what was newest before gets its end and
// values back. The list of keys comes between each head and tail; with whole there is
// none.
func (sh *shape) undoSQL(whole bool) (forget, restore [2]string) {
	var onRecord, onTarget []string
	for n, k := range sh.keys {
		name := sh.columns[k].name
		onRecord = append(onRecord, fmt.Sprintf("r.%s = q.k%d", name, n))
		onTarget = append(onTarget, fmt.Sprintf("t.%s = r.%[1]s", name))
	}
	head, from := "", sh.record+" AS r"
	if !whole {
		head, from = "(", fmt.Sprintf(") AS q STRAIGHT_JOIN %s AS r ON %s", sh.record, strings.Join(onRecord, " AND "))
	}
	from += fmt.Sprintf(" STRAIGHT_JOIN %s AS t FORCE INDEX (%s) ON %s", sh.name, sh.index, strings.Join(onTarget, " AND "))
	sets := "t." + endColumn + " = r." + endColumn
	if more := sh.list(notKey, func(c *column) string { return fmt.Sprintf("t.%s = r.%[1]s", c.name) }); more != "" {
		sets += ", " + more
	}
	return [2]string{"DELETE t FROM " + head, fmt.Sprintf("%s WHERE r.%s IS NULL OR t.%[2]s > r.%[2]s", from, startColumn)},
		[2]string{"UPDATE " + head, fmt.Sprintf("%s AND t.%s = r.%[2]s SET %s", from, startColumn, sets)}
}
