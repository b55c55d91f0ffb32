package postgres

import (
	"fmt"

	"tailrace/scd"
)

// Statements that make a target equal to the stage of a resync. What is equal in its
// stored bytes is not touched: most of a table mostly is.

type replaceStep struct {
	sql    string
	counts countedAs
}

type countedAs uint8

const (
	notCounted countedAs = iota
	countRemoved
	countWritten
)

// staged is the stage's rows, with the types that the target's columns are compared as.
// Where notes is not empty, it is those at the keys that are noted there.
func (sh *shape) staged(stage, notes string) string {
	return fmt.Sprintf("(SELECT %s FROM %s AS t%s)", each(len(sh.columns), ", ", func(i int) string {
		return fmt.Sprintf("%s::%s AS %[1]s", stageColumn(i), sh.columns[i].base)
	}), stage, sh.noted(notes, " WHERE ", func(i int) string { return stageColumn(i) }))
}

// noted is the condition that a row t is at a key that is noted, after a word; "" if
// there are no notes. column names the row's columns.
func (sh *shape) noted(notes, word string, column func(i int) string) string {
	if notes == "" {
		return ""
	}
	return fmt.Sprintf("%sEXISTS (SELECT FROM %s AS n WHERE %s)", word, notes, each(len(sh.keys), " AND ", func(k int) string {
		i := sh.keys[k]
		return fmt.Sprintf("t.%s %s n.%s::%s", column(i), sh.columns[i].equals, stageColumn(i), sh.columns[i].base)
	}))
}

// differSQL notes the keys at which target and stage differ: of a history, its open
// versions.
func (sh *shape) differSQL(stage, notes string) []string {
	from, rows := sh.staged(stage, ""), sh.name+" AS t WHERE"
	if sh.target.Kind == scd.Type2 {
		rows += fmt.Sprintf(" t.%s IS NULL AND", endColumn)
	}
	key := sh.onKey(sh.stageKey)
	insert := fmt.Sprintf("INSERT INTO %s (%s) SELECT ", notes, sh.stageKeys())
	return []string{
		fmt.Sprintf("%s%s FROM %s AS s WHERE NOT EXISTS (SELECT FROM %s %s AND %s)", insert, each(len(sh.keys), ", ", sh.stageKey), from, rows, key, sh.sameImage(all)),
		fmt.Sprintf("%s%s FROM %s NOT EXISTS (SELECT FROM %s AS s WHERE %s)", insert, each(len(sh.keys), ", ", func(k int) string { return "t." + sh.column(sh.keys[k]) }), rows, from, key),
	}
}

// stageKeys is the stage's key: the columns of a table that holds keys.
func (sh *shape) stageKeys() string {
	return each(len(sh.keys), ", ", func(k int) string { return stageColumn(sh.keys[k]) })
}

func isKey(c *column) bool { return c.key }

// goneTable holds the keys that go where the stage holds a part of the table. Its
// columns are named as the stage's.
const goneTable = "pg_temp.tailrace_gone"

func (sh *shape) createGoneSQL() string {
	return fmt.Sprintf("CREATE TEMPORARY TABLE tailrace_gone (%s) ON COMMIT DROP",
		each(len(sh.keys), ", ", func(k int) string { return stageColumn(sh.keys[k]) + " " + sh.columns[sh.keys[k]].base }))
}

// replaceSQL makes a type 1 target equal to the stage; with part the keys in goneTable
// go, and no others. A row whose key compares equal
// and is spelled otherwise is deleted and inserted: the column may refuse an UPDATE.
// With a second unique index the rows that differ are deleted first, too: they may
// exchange its values.
func (sh *shape) replaceSQL(stage, notes string, part bool) []replaceStep {
	from := sh.staged(stage, notes)
	insert := fmt.Sprintf("INSERT INTO %s (%s)%s SELECT %s FROM %s AS s", sh.name, sh.columnList(), sh.overriding(), sh.join(all, sentColumn), from)
	if len(sh.keys) == 0 {
		return []replaceStep{{"DELETE FROM " + sh.name, countRemoved}, {insert, countWritten}}
	}
	key := sh.onKey(sh.stageKey)
	steps := []replaceStep{{fmt.Sprintf("DELETE FROM %s AS t WHERE NOT EXISTS (SELECT FROM %s AS s WHERE %s AND %s)%s", sh.name, from, key, sh.sameImage(isKey), sh.noted(notes, " AND ", sh.column)), countRemoved}}
	if part {
		steps = []replaceStep{
			{fmt.Sprintf("DELETE FROM %s AS t USING %s AS s WHERE %s AND %s", sh.name, goneTable, key, sh.sameImage(isKey)), countRemoved},
			{fmt.Sprintf("DELETE FROM %s AS t USING %s AS s WHERE %s AND NOT %s", sh.name, from, key, sh.sameImage(isKey)), countRemoved},
		}
	}
	differ := fmt.Sprintf("%s AS s WHERE %s AND NOT %s", from, key, sh.sameImage(notKey))
	if set := sh.join(notKey, func(i int) string { return sh.column(i) + " = " + sentColumn(i) }); len(sh.uniques) > 0 {
		steps = append(steps, replaceStep{fmt.Sprintf("DELETE FROM %s AS t USING %s", sh.name, differ), notCounted})
	} else if set != "" {
		steps = append(steps, replaceStep{fmt.Sprintf("UPDATE %s AS t SET %s FROM %s", sh.name, set, differ), countWritten})
	}
	return append(steps, replaceStep{fmt.Sprintf("%s WHERE NOT EXISTS (SELECT FROM %s AS t WHERE %s)", insert, sh.name, key), countWritten})
}

// replaceVersionsSQL makes the open versions equal to the stage, in one step at an
// instant; with part those with the keys in goneTable end, and no others.
func (sh *shape) replaceVersionsSQL(stage, notes, at string, part bool) []replaceStep {
	from, key := sh.staged(stage, notes), sh.onKey(sh.stageKey)
	open := fmt.Sprintf("%s AS t WHERE t.%s IS NULL%s", sh.name, endColumn, sh.noted(notes, " AND ", sh.column))
	ends := fmt.Sprintf("NOT EXISTS (SELECT FROM %s AS s WHERE %s)", from, key)
	stopped := fmt.Sprintf("NOT EXISTS (SELECT FROM %s AS s WHERE %s AND %s)", from, key, sh.sameImage(tracked))
	if part {
		ends = fmt.Sprintf("EXISTS (SELECT FROM %s AS s WHERE %s AND %s)", goneTable, key, sh.sameImage(isKey))
		stopped = fmt.Sprintf("(%s OR EXISTS (SELECT FROM %s AS s WHERE %s AND NOT %s))", ends, from, key, sh.sameImage(tracked))
	}
	steps := fmt.Sprintf("(SELECT false AS x, %[1]s::timestamptz AS lo, s.* FROM %[2]s AS s WHERE NOT EXISTS (SELECT FROM %[3]s AND %[4]s AND %[5]s)\nUNION ALL SELECT true, %[1]s::timestamptz, %[6]s FROM %[3]s AND %[7]s)",
		at, from, open, key, sh.sameImage(notKey),
		each(len(sh.columns), ", ", func(i int) string {
			if c := &sh.columns[i]; !c.key {
				return "NULL::" + c.base
			}
			return "t." + sh.column(i) + "::" + sh.columns[i].base
		}), ends)
	return []replaceStep{
		{fmt.Sprintf("SELECT count(*) FROM %s AND %s", open, stopped), countRemoved},
		{sh.stepsSQL(steps, false), countWritten},
	}
}
