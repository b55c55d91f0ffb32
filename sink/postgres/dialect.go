package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"tailrace/scd"
)

// This file is text alone: every statement about a target is a function of its
// shape. testdata/sql shows them all.
//
// A stage is a temporary table that a batch's rows are copied into. Its columns:
//
//	g       what a row is: move, upsert, patch, insert (type 1)
//	a       which columns are absent, bit i for column i, least significant first; NULL: none
//	o1..    key at which absent columns are read (a move's old key, a step's origin)
//	c1..    the target's columns in order
//	k, n    number of the step's key in the round, number of the step (type 2)
//	x       the step is a close
//	lo, lov, nlo, nlov   Lo and LoVoid of this step, and of the next one
//	st, en  start and end of a version (sequenced type 2)
//
// They carry the target's types without length or domain: what a column demands
// is demanded once, when its row is written.

const (
	groupMove   = 1
	groupUpsert = 2
	groupPatch  = 3
	groupInsert = 4
)

// quote makes an identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal makes a string constant.
func literal(s string) string {
	if strings.Contains(s, `\`) {
		return `E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + `'`
	}
	return `'` + strings.ReplaceAll(s, `'`, `''`) + `'`
}

func stageColumn(i int) string  { return "c" + strconv.Itoa(i+1) }
func originColumn(i int) string { return "o" + strconv.Itoa(i+1) }

var (
	startColumn = quote(scd.StartColumn)
	endColumn   = quote(scd.EndColumn)
)

// each joins what f makes of the numbers 0 to n-1.
func each(n int, sep string, f func(i int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = f(i)
	}
	return strings.Join(parts, sep)
}

// list is what f makes of every column that we write and want wants; generated
// columns are left to the destination.
func (sh *shape) list(want func(*column) bool, f func(i int) string) []string {
	var parts []string
	for i := range sh.columns {
		if c := &sh.columns[i]; !c.generated && want(c) {
			parts = append(parts, f(i))
		}
	}
	return parts
}

func (sh *shape) join(want func(*column) bool, f func(i int) string) string {
	return strings.Join(sh.list(want, f), ", ")
}

func all(*column) bool         { return true }
func notKey(c *column) bool    { return !c.key }
func tracked(c *column) bool   { return c.tracked }
func untracked(c *column) bool { return !c.tracked && !c.key }

func (sh *shape) column(i int) string { return sh.columns[i].name }
func sentColumn(i int) string         { return "s." + stageColumn(i) }

// columnList is the columns we write, in target order.
func (sh *shape) columnList() string { return sh.join(all, sh.column) }

// keyList is the key columns' names.
func (sh *shape) keyList() string {
	return each(len(sh.keys), ", ", func(k int) string { return sh.columns[sh.keys[k]].name })
}

// onKey compares the key of the target (alias t) with columns of s.
func (sh *shape) onKey(of func(k int) string) string {
	return each(len(sh.keys), " AND ", func(k int) string {
		c := sh.columns[sh.keys[k]]
		return "t." + c.name + " " + c.equals + " " + of(k)
	})
}

// onStage is onKey for a join with many rows, alias s: for each of them the target's
// index is descended, never the other way round. For a table that it believes to be
// empty (a queue that was vacuumed, a plan made early) the planner would read the
// target by its index, in the order of the key, and all of s for each row. It thinks
// of that only where the order serves the join, and the order does not serve ANY.
func (sh *shape) onStage(of func(k int) string) string {
	return sh.descend("t.", of, func(k int) string { return sh.columns[sh.keys[k]].name })
}

func (sh *shape) descend(alias string, of, name func(k int) string) string {
	return each(len(sh.keys), " AND ", func(k int) string {
		c := sh.columns[sh.keys[k]]
		if k == 0 && !c.nested {
			return alias + name(k) + " " + c.equals + " ANY (ARRAY[" + of(k) + "])"
		}
		return alias + name(k) + " " + c.equals + " " + of(k)
	})
}

func (sh *shape) stageKey(k int) string  { return "s." + stageColumn(sh.keys[k]) }
func (sh *shape) originKey(k int) string { return "s." + originColumn(k) }

// overriding lets us write an identity column that is GENERATED ALWAYS.
func (sh *shape) overriding() string {
	if sh.identityAlways {
		return " OVERRIDING SYSTEM VALUE"
	}
	return ""
}

// insertSQL writes rows that are selected by from; an append-only target has no
// key to conflict on, and strict leaves the conflict as the error it is.
func (sh *shape) insertSQL(from string, strict bool) string {
	sql := fmt.Sprintf("INSERT INTO %s (%s)%s %s", sh.name, sh.columnList(), sh.overriding(), from)
	if strict || len(sh.keys) == 0 {
		return sql
	}
	set := sh.join(notKey, func(i int) string { return fmt.Sprintf("%s = excluded.%[1]s", sh.column(i)) })
	if set == "" {
		return fmt.Sprintf("%s ON CONFLICT (%s) DO NOTHING", sql, sh.keyList())
	}
	return fmt.Sprintf("%s ON CONFLICT (%s) DO UPDATE SET %s", sql, sh.keyList(), set)
}

// upsertRowSQL writes one row of parameters.
func (sh *shape) upsertRowSQL() string {
	return sh.insertSQL("VALUES ("+sh.join(all, sh.params())+")", false)
}

// upsertStageSQL writes a group of the stage.
func (sh *shape) upsertStageSQL(group int, strict bool) string {
	return sh.insertSQL(fmt.Sprintf("SELECT %s FROM %s AS s WHERE s.g = %d", sh.join(all, sentColumn), sh.stage.name, group), strict)
}

// params numbers the columns that we write as parameters, with their types.
func (sh *shape) params() func(i int) string {
	number := make([]string, len(sh.columns))
	for n, i := range sh.writes() {
		number[i] = fmt.Sprintf("$%d::%s", n+1, sh.columns[i].base)
	}
	return func(i int) string { return number[i] }
}

// writes is the indexes of the columns that we write.
func (sh *shape) writes() []int {
	var out []int
	for i := range sh.columns {
		if !sh.columns[i].generated {
			out = append(out, i)
		}
	}
	return out
}

// keep is the expression for a column that may be absent: absent holds the bits,
// sent the value that was sent, stored what is there.
func keep(absent string, i int, sent, stored string) string {
	return fmt.Sprintf("CASE WHEN pg_catalog.get_bit(%s, %d) = 1 THEN %s ELSE %s END", absent, i, stored, sent)
}

// patchSets is the SET list of an update that keeps absent columns.
func (sh *shape) patchSets(absent string, sent func(i int) string) string {
	return sh.join(notKey, func(i int) string {
		return sh.column(i) + " = " + keep(absent, i, sent(i), "t."+sh.column(i))
	})
}

// patchRowSQL updates one row and raises division_by_zero if there is none. Its
// parameters are the columns that we write, then the bits of the absent ones.
func (sh *shape) patchRowSQL() string {
	return fmt.Sprintf("WITH u AS (%s RETURNING 1) SELECT 1 / (SELECT count(*) FROM u)", sh.patchIfThereSQL())
}

// patchIfThereSQL is patchRowSQL that does nothing if there is none.
func (sh *shape) patchIfThereSQL() string {
	param := sh.params()
	return fmt.Sprintf("UPDATE %s AS t SET %s WHERE %s",
		sh.name, sh.patchSets(fmt.Sprintf("$%d::bytea", len(sh.writes())+1), param), sh.onKey(func(k int) string { return param(sh.keys[k]) }))
}

// patchStageSQL updates the stage's patches. The number of updated rows must be
// that of the patches.
func (sh *shape) patchStageSQL() string {
	return fmt.Sprintf("UPDATE %s AS t SET %s FROM %s AS s WHERE s.g = %d AND %s",
		sh.name, sh.patchSets("s.a", sentColumn), sh.stage.name, groupPatch, sh.onStage(sh.stageKey))
}

// fillStageSQL gives the rows of a group that have absent columns what is stored
// at their origin's key. The number of updated rows must be that of those rows.
func (sh *shape) fillStageSQL(group int) string {
	return fmt.Sprintf("UPDATE %s AS s SET %s FROM %s AS t WHERE s.g = %d AND s.a IS NOT NULL AND %s",
		sh.stage.name,
		sh.join(notKey, func(i int) string {
			return stageColumn(i) + " = " + keep("s.a", i, sentColumn(i), "t."+sh.column(i))
		}),
		sh.name, group, sh.onStage(sh.originKey))
}

// unfilledSQL takes the rows of a group out of the stage whose absent columns stand
// nowhere.
func (sh *shape) unfilledSQL(group int) string {
	return fmt.Sprintf("DELETE FROM %s AS s WHERE s.g = %d AND s.a IS NOT NULL AND NOT EXISTS (SELECT FROM %s AS t WHERE %s)",
		sh.stage.name, group, sh.name, sh.onKey(sh.originKey))
}

// deleteKeySQL deletes one key, given as parameters.
func (sh *shape) deleteKeySQL() string {
	return fmt.Sprintf("DELETE FROM %s AS t WHERE %s", sh.name, sh.onKey(func(k int) string {
		return fmt.Sprintf("$%d::%s", k+1, sh.columns[sh.keys[k]].base)
	}))
}

// deleteKeysSQL deletes many keys, given as one array for each key column.
func (sh *shape) deleteKeysSQL() string {
	if len(sh.keys) == 1 {
		c := sh.columns[sh.keys[0]]
		return fmt.Sprintf("DELETE FROM %s AS t WHERE t.%s %s ANY ($1::%s)", sh.name, c.name, c.equals, c.array)
	}
	return fmt.Sprintf("DELETE FROM %s AS t USING ROWS FROM (%s) AS s (%s) WHERE %s", sh.name,
		each(len(sh.keys), ", ", func(k int) string {
			return fmt.Sprintf("pg_catalog.unnest($%d::%s)", k+1, sh.columns[sh.keys[k]].array)
		}),
		each(len(sh.keys), ", ", originColumn),
		sh.onStage(sh.originKey))
}

// deleteStageKeysSQL deletes every key that stands in the stage.
func (sh *shape) deleteStageKeysSQL() string {
	return fmt.Sprintf("DELETE FROM %s AS t USING %s AS s WHERE %s", sh.name, sh.stage.name, sh.onStage(sh.stageKey))
}

func (sh *shape) truncateSQL() string { return "TRUNCATE " + sh.name }

// copySQL loads rows straight into the target.
func (sh *shape) copySQL(binary bool) string {
	list := sh.columnList()
	if sh.target.Kind == scd.Type2 {
		list += ", " + startColumn + ", " + endColumn
	}
	return copyInto(sh.name, list, binary)
}

func copyInto(table, list string, binary bool) string {
	if binary {
		return fmt.Sprintf("COPY %s (%s) FROM STDIN (FORMAT binary)", table, list)
	}
	return fmt.Sprintf("COPY %s (%s) FROM STDIN", table, list)
}

// createStageSQL makes the stage; its rows go with each transaction.
func (sh *shape) createStageSQL() string {
	cols := "a bytea, "
	switch {
	case sh.target.Kind == scd.Type2 && sh.target.Sequenced:
		cols += fmt.Sprintf("st %s, en %[1]s, ", sh.start.base)
	case sh.target.Kind == scd.Type2:
		cols = "k integer, n integer, x boolean, lo timestamptz, lov timestamptz, nlo timestamptz, nlov timestamptz, " + cols
	default:
		cols = "g smallint, " + cols
	}
	cols += each(len(sh.keys), "", func(k int) string { return originColumn(k) + " " + sh.columns[sh.keys[k]].base + ", " })
	cols += each(len(sh.columns), ", ", func(i int) string { return stageColumn(i) + " " + sh.columns[i].base })
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s (%s) ON COMMIT DELETE ROWS", sh.stage.name, cols)
}

// stageStart is the stage's columns that hold a version's start and end.
func (sh *shape) stageStart() string {
	if sh.target.Sequenced {
		return "st, en"
	}
	return "lo, nlo"
}

// stageList is the column list of a COPY into the stage. Absence and origin are
// copied only where the round has any.
func (sh *shape) stageList(gaps, several bool) string {
	list := "g, "
	if sh.target.Kind == scd.Type2 {
		list = "x, lo, "
		if several {
			list = "k, n, x, lo, lov, nlo, nlov, "
		}
	}
	if gaps {
		list += "a, " + each(len(sh.keys), "", func(k int) string { return originColumn(k) + ", " })
	}
	return list + each(len(sh.columns), ", ", stageColumn)
}
