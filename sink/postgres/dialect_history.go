package postgres

import (
	"fmt"
	"strconv"
	"strings"
)

// Statements of type 2. The newest version of a key is found by one descent of
// the index (key, __START_AT) and written by its ctid, so that a key with a
// million versions costs what a new one costs. Equality is that of the stored
// bytes (record_image_eq), which every type has, json and point too.

const microsecond = "interval '1 microsecond'"

// newest selects the newest version of the key given by of, as alias v: its tid,
// start (st), end (en) and further expressions over t.
func (sh *shape) newest(of func(k int) string, condition string, further ...string) string {
	list := append([]string{"t.ctid AS tid", "t." + startColumn + " AS st", "t." + endColumn + " AS en"}, further...)
	return fmt.Sprintf("LATERAL (SELECT %s FROM %s AS t WHERE %s%s ORDER BY t.%s DESC LIMIT 1) AS v",
		strings.Join(list, ", "), sh.name, sh.onKey(of), condition, startColumn)
}

// storedColumns is the columns beside the key, under the stage's names.
func (sh *shape) storedColumns() []string {
	return sh.list(notKey, func(i int) string { return "t." + sh.column(i) + " AS " + stageColumn(i) })
}

// sameImage compares stored and sent columns byte by byte.
func (sh *shape) sameImage(want func(c *column) bool) string {
	stored := sh.join(want, func(i int) string {
		if sh.columns[i].domain { // images of a domain and of its base do not compare
			return "t." + sh.column(i) + "::" + sh.columns[i].base
		}
		return "t." + sh.column(i)
	})
	if stored == "" {
		return "true"
	}
	return fmt.Sprintf("pg_catalog.record_image_eq(ROW(%s), ROW(%s))", stored, sh.join(want, sentColumn))
}

// stepsSQL carries out a round's steps. from is where they stand: the stage, or
// one row of parameters. With several, keys may have more than one step.
//
// Of each step 1 the newest version is looked up. Whether the step is void, and
// the key's newest instant b, then hold for all steps of the key.
func (sh *shape) stepsSQL(from string, several bool) string {
	const open = "f.tid IS NOT NULL AND f.en IS NULL"
	const void = "CASE WHEN f.x THEN NOT (" + open + ") ELSE " + open + " AND f.same END"
	images := []string{sh.sameImage(tracked) + " AS same"}
	free := sh.list(untracked, func(i int) string {
		return fmt.Sprintf("%s = CASE WHEN j.void AND NOT j.x THEN j.%s ELSE t.%[1]s END", sh.column(i), stageColumn(i))
	})
	sameFree := ""
	if len(free) > 0 {
		images = append(images, sh.sameImage(untracked)+" AS same_free")
		sameFree = ", v.same_free"
	}

	condition, first := "", ""
	judged := fmt.Sprintf("j AS MATERIALIZED (SELECT f.*, coalesce(f.en, f.st) AS b, %s AS void FROM f)", void)
	at := "greatest(j.lo, j.b + " + microsecond + ")"
	until := "NULL::timestamptz"
	ends, ending := "CASE WHEN j.void THEN NULL ELSE "+at+" END", "NOT j.void"
	if several {
		condition, first = " AND s.n = 1", "j.n = 1 AND "
		judged = fmt.Sprintf(`w AS (SELECT f.*, coalesce(f.en, f.st) AS newest, %s AS nothing FROM f),
j AS MATERIALIZED (SELECT w.*, first_value(w.newest) OVER key AS b, first_value(w.nothing) OVER key AS void
  FROM w WINDOW key AS (PARTITION BY w.k ORDER BY w.n))`, void)
		at = fmt.Sprintf("CASE WHEN j.void THEN greatest(j.lov, j.b + (j.n - 1) * %s) ELSE greatest(j.lo, j.b + j.n * %[1]s) END", microsecond)
		until = fmt.Sprintf("CASE WHEN j.nlo IS NULL THEN NULL WHEN j.void THEN greatest(j.nlov, j.b + j.n * %s) ELSE greatest(j.nlo, j.b + (j.n + 1) * %[1]s) END", microsecond)
		ends = fmt.Sprintf("CASE WHEN j.void THEN %s ELSE %s END", until, at)
		ending = "NOT j.void OR j.nlo IS NOT NULL"
	}
	if len(free) > 0 {
		ending += " OR NOT j.x AND NOT j.same_free"
	}
	return fmt.Sprintf(`WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same%s FROM %s AS s LEFT JOIN %s ON true),
%s,
ended AS (UPDATE %s AS t SET %s FROM j WHERE %st.ctid = j.tid AND j.en IS NULL AND (%s))
INSERT INTO %s (%s)%s
SELECT %s FROM j WHERE NOT j.x AND NOT (%sj.void)`,
		sameFree, from, sh.newest(sh.stageKey, condition, images...),
		judged,
		sh.name, strings.Join(append([]string{endColumn + " = " + ends}, free...), ", "), first, ending,
		sh.name, strings.Join([]string{sh.columnList(), startColumn, endColumn}, ", "), sh.overriding(),
		strings.Join(append(sh.list(all, func(i int) string { return "j." + stageColumn(i) }), at, until), ", "), first)
}

// stepRowSQL carries out one step given as parameters: whether it is a close, its
// instant, every column.
func (sh *shape) stepRowSQL() string {
	row := "(SELECT $1::boolean AS x, $2::timestamptz AS lo, " + each(len(sh.columns), ", ", func(i int) string {
		return "$" + strconv.Itoa(i+3) + "::" + sh.columns[i].base + " AS " + stageColumn(i)
	}) + ")"
	return sh.stepsSQL(row, false)
}

// stepStageSQL carries out the stage's steps.
func (sh *shape) stepStageSQL(several bool) string { return sh.stepsSQL(sh.stage.name, several) }

// fillStepsSQL gives steps with absent columns what the origin's open version
// holds. The number of updated rows must be that of those steps.
func (sh *shape) fillStepsSQL() string {
	return fmt.Sprintf("UPDATE %[1]s AS s SET %[2]s FROM (SELECT s.ctid AS place, v.* FROM %[1]s AS s CROSS JOIN %[3]s WHERE s.a IS NOT NULL AND v.en IS NULL) AS v WHERE s.ctid = v.place",
		sh.stage.name,
		sh.join(notKey, func(i int) string {
			return stageColumn(i) + " = " + keep("s.a", i, sentColumn(i), "v."+stageColumn(i))
		}),
		sh.newest(sh.originKey, "", sh.storedColumns()...))
}

// truncateStepsSQL ends the open versions of keys that the stage does not name,
// at $1. It reads the whole target.
func (sh *shape) truncateStepsSQL(steps bool) string {
	sql := fmt.Sprintf("UPDATE %[1]s AS t SET %[2]s = greatest($1::timestamptz, t.%[3]s + %[4]s) WHERE t.%[2]s IS NULL", sh.name, endColumn, startColumn, microsecond)
	if steps {
		sql += fmt.Sprintf(" AND NOT EXISTS (SELECT FROM %s AS s WHERE %s)", sh.stage.name, sh.onKey(sh.stageKey))
	}
	return sql
}

// The record of a source transaction that comes in pieces: for each key it has
// touched, the newest version as it was before (st NULL: there was none).

func (sh *shape) createRecordSQL() string {
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s (st timestamptz, en timestamptz, %s, PRIMARY KEY (%s)) ON COMMIT DROP", sh.record,
		each(len(sh.columns), ", ", func(i int) string { return stageColumn(i) + " " + sh.columns[i].base }),
		each(len(sh.keys), ", ", func(k int) string { return stageColumn(sh.keys[k]) }))
}

// rememberSQL records the newest versions of the stage's keys that an earlier
// piece has not.
func (sh *shape) rememberSQL() string {
	return fmt.Sprintf("INSERT INTO %s (st, en, %s) SELECT v.st, v.en, %s FROM %s AS s LEFT JOIN %s ON true ON CONFLICT DO NOTHING",
		sh.record,
		sh.join(all, stageColumn),
		sh.join(all, func(i int) string {
			if sh.columns[i].key {
				return sentColumn(i)
			}
			return "v." + stageColumn(i)
		}),
		sh.stage.name, sh.newest(sh.stageKey, "", sh.storedColumns()...))
}

// rememberOpenSQL records every open version, before a truncate ends them.
func (sh *shape) rememberOpenSQL() string {
	return fmt.Sprintf("INSERT INTO %[1]s (st, en, %[2]s) SELECT t.%[3]s, t.%[4]s, %[5]s FROM %[6]s AS t WHERE t.%[4]s IS NULL ON CONFLICT DO NOTHING",
		sh.record, sh.join(all, stageColumn), startColumn, endColumn, sh.join(all, func(i int) string { return "t." + sh.column(i) }), sh.name)
}

// undoSQL takes back what this source transaction has done to the stage's keys,
// or with whole to every key: what it began goes, and what was newest before gets
// its end and values back.
func (sh *shape) undoSQL(whole bool) (forget, restore string) {
	record := func(k int) string { return stageColumn(sh.keys[k]) }
	from := sh.record + " AS r"
	key := sh.onStage(func(k int) string { return "r." + record(k) })
	if !whole {
		from += ", " + sh.stage.name + " AS s"
		key = sh.onStage(sh.stageKey) + " AND " + sh.descend("r.", sh.stageKey, record)
	}
	forget = fmt.Sprintf("DELETE FROM %s AS t USING %s WHERE %s AND (r.st IS NULL OR t.%s > r.st)", sh.name, from, key, startColumn)
	sets := append([]string{endColumn + " = r.en"}, sh.list(notKey, func(i int) string { return sh.column(i) + " = r." + stageColumn(i) })...)
	restore = fmt.Sprintf("UPDATE %s AS t SET %s FROM %s WHERE %s AND t.%s = r.st", sh.name, strings.Join(sets, ", "), from, key, startColumn)
	return forget, restore
}
