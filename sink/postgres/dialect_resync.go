package postgres

import "fmt"

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
func (sh *shape) staged(stage string) string {
	return fmt.Sprintf("(SELECT %s FROM %s)", each(len(sh.columns), ", ", func(i int) string {
		return fmt.Sprintf("%s::%s AS %[1]s", stageColumn(i), sh.columns[i].base)
	}), stage)
}

func isKey(c *column) bool { return c.key }

// goneTable holds the keys that go where the stage holds a part of the table. Its
// columns are named as the stage's.
const goneTable = "pg_temp.tailrace_gone"

func (sh *shape) createGoneSQL() string {
	return fmt.Sprintf("CREATE TEMPORARY TABLE tailrace_gone (%s) ON COMMIT DROP",
		each(len(sh.keys), ", ", func(k int) string { return stageColumn(sh.keys[k]) + " " + sh.columns[sh.keys[k]].base }))
}

func (sh *shape) goneList() string {
	return each(len(sh.keys), ", ", func(k int) string { return stageColumn(sh.keys[k]) })
}

// replaceSQL makes a type 1 target equal to the stage; with part the keys in goneTable
// go, and no others. A row whose key compares equal
// and is spelled otherwise is deleted and inserted: the column may refuse an UPDATE.
// With a second unique index the rows that differ are deleted first, too: they may
// exchange its values.
func (sh *shape) replaceSQL(stage string, part bool) []replaceStep {
	from := sh.staged(stage)
	insert := fmt.Sprintf("INSERT INTO %s (%s)%s SELECT %s FROM %s AS s", sh.name, sh.columnList(), sh.overriding(), sh.join(all, sentColumn), from)
	if len(sh.keys) == 0 {
		return []replaceStep{{"DELETE FROM " + sh.name, countRemoved}, {insert, countWritten}}
	}
	key := sh.onKey(sh.stageKey)
	steps := []replaceStep{{fmt.Sprintf("DELETE FROM %s AS t WHERE NOT EXISTS (SELECT FROM %s AS s WHERE %s AND %s)", sh.name, from, key, sh.sameImage(isKey)), countRemoved}}
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
func (sh *shape) replaceVersionsSQL(stage, at string, part bool) []replaceStep {
	from, key := sh.staged(stage), sh.onKey(sh.stageKey)
	open := fmt.Sprintf("%s AS t WHERE t.%s IS NULL", sh.name, endColumn)
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
