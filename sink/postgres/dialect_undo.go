package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
)

// What is kept of a target from one rewind point on is a table in _tailrace with the
// target's own columns, but for generated ones, and one more:
//
//	_tailrace_was   such a row was there; without a key: it went (else it came)
//
// A row stands for a key (of a sequenced history for a version, by key and start), which a
// unique index keeps single; where there was none, the other columns are NULL. Of an
// ordered history it is the newest version of its key. What is kept of its records is
// another table like that of records, with that column too; its index is that of records
// of histories, because keys, sequences and places are too long for a unique one.

const wasColumn = `"_tailrace_was"`

// keptName names what is kept of a target under a number.
func keptName(pipeline string, n change.Name, number int64, records bool) string {
	sum := sha256.Sum256([]byte(pipeline + "\x00" + n.Schema + "\x00" + n.Table))
	name := fmt.Sprintf("undo_%s_%d", hex.EncodeToString(sum[:8]), number)
	if records {
		name += "_records"
	}
	return name
}

func keptTable(name string) string { return "_tailrace." + quote(name) }

// keptColumns are the plain names of the columns that are kept, in order.
func (sh *shape) keptColumns() []string {
	var names []string
	for i := range sh.columns {
		if !sh.columns[i].generated {
			names = append(names, sh.columns[i].plain)
		}
	}
	if sh.target.Kind == scd.Type2 {
		names = append(names, scd.StartColumn, scd.EndColumn)
	}
	return names
}

// identity are the plain names of the columns by which a kept row is found.
func (sh *shape) identity() []string {
	var names []string
	for _, k := range sh.keys {
		names = append(names, sh.columns[k].plain)
	}
	if sh.byVersion() {
		names = append(names, scd.StartColumn)
	}
	return names
}

func quoted(names []string) []string {
	out := make([]string, len(names))
	for i := range names {
		out[i] = quote(names[i])
	}
	return out
}

// createKeptSQL makes the table of what is kept of a target.
func (sh *shape) createKeptSQL(kept string) string {
	sql := fmt.Sprintf("CREATE TABLE %s AS SELECT false AS %s, %s FROM %s AS t WITH NO DATA", kept, wasColumn, prefixed("t.", quoted(sh.keptColumns())), sh.name)
	if len(sh.keys) > 0 {
		sql += fmt.Sprintf("; CREATE UNIQUE INDEX ON %s (%s)", kept, strings.Join(quoted(sh.identity()), ", "))
	}
	return sql
}

func createKeptRecordsSQL(kept string) string {
	return fmt.Sprintf("CREATE TABLE %s (\n  %s boolean NOT NULL,\n  key bytea NOT NULL,\n  seq bytea NOT NULL,\n  at bytea NOT NULL,\n  body bytea,\n  tombstone boolean,\n  time bigint\n); CREATE INDEX ON %[1]s (key, seq, substr(at, 1, 1000))", kept, wasColumn)
}

// onIdentity compares the target's row t with a kept row of that alias.
func (sh *shape) onIdentity(alias string) string {
	on := sh.onKey(func(k int) string { return alias + sh.columns[sh.keys[k]].name })
	if sh.byVersion() {
		on += fmt.Sprintf(" AND t.%s %s %s%[1]s", startColumn, sh.start.equals, alias)
	}
	return on
}

// keepKeysSQL keeps keys (of a sequenced history with starts) that are given as arrays, or
// one as values: those of which nothing is kept yet. columns are the plain names of those
// that the table has.
func (sh *shape) keepKeysSQL(kept string, columns []string) string {
	from := sh.versionsFrom(false)
	if !sh.byVersion() {
		from = sh.keysFrom()
	}
	known := sh.descend("k.", sh.originKey, func(k int) string { return sh.columns[sh.keys[k]].name })
	of := fmt.Sprintf("%s AS t ON %s", sh.name, sh.onStage(sh.originKey))
	switch {
	case sh.byVersion():
		known += fmt.Sprintf(" AND k.%s %s s.st", startColumn, sh.start.equals)
		of += fmt.Sprintf(" AND t.%s %s s.st", startColumn, sh.start.equals)
	case sh.target.Kind == scd.Type2:
		of = fmt.Sprintf("LATERAL (SELECT t.ctid, %s FROM %s AS t WHERE %s ORDER BY t.%s DESC LIMIT 1) AS t ON true",
			prefixed("t.", fedColumns(sh.target)), sh.name, sh.onKey(sh.originKey), startColumn)
	}
	values := make([]string, len(columns))
	for i, name := range columns {
		values[i] = "t." + quote(name)
		if k := slices.IndexFunc(sh.keys, func(k int) bool { return sh.columns[k].plain == name }); k >= 0 {
			values[i] = fmt.Sprintf("coalesce(%s, s.%s)", values[i], originColumn(k))
		} else if sh.byVersion() && name == scd.StartColumn {
			values[i] = fmt.Sprintf("coalesce(%s, s.st)", values[i])
		}
	}
	// Nothing more is looked up of what is kept already: hence OFFSET, which keeps the
	// order of the two. Keys that are equal and spelled otherwise are made one before,
	// because ON CONFLICT takes half as long again.
	id := each(len(sh.keys), ", ", func(k int) string { return "s." + originColumn(k) })
	if sh.byVersion() {
		id += ", s.st"
	}
	return fmt.Sprintf("INSERT INTO %s (%s, %s) SELECT t.ctid IS NOT NULL, %s FROM (SELECT s.* FROM (SELECT DISTINCT ON (%s) s.* FROM %s ORDER BY %[5]s) AS s WHERE NOT EXISTS (SELECT FROM %[1]s AS k WHERE %[7]s) OFFSET 0) AS s LEFT JOIN %[8]s",
		kept, wasColumn, strings.Join(quoted(columns), ", "), strings.Join(values, ", "), id, from, known, of)
}

// keepAllSQL keeps every row that a TRUNCATE changes: of an ordered history the open
// versions.
func (sh *shape) keepAllSQL(kept string, columns []string) string {
	where := ""
	switch {
	case sh.target.Kind == scd.Type2 && !sh.byVersion():
		where = fmt.Sprintf(" WHERE t.%s IS NULL ON CONFLICT DO NOTHING", endColumn)
	case len(sh.keys) > 0:
		where = fmt.Sprintf(" WHERE NOT EXISTS (SELECT FROM %s AS k WHERE %s)", kept, sh.onIdentity("k."))
	}
	return fmt.Sprintf("INSERT INTO %s (%s, %s) SELECT true, %s FROM %s AS t%s", kept, wasColumn, strings.Join(quoted(columns), ", "), prefixed("t.", quoted(columns)), sh.name, where)
}

// keepRowSQL keeps a row that comes, of a target without a key.
func (sh *shape) keepRowSQL(kept string) string {
	return fmt.Sprintf("INSERT INTO %s (%s, %s) VALUES (false, %s)", kept, wasColumn, sh.columnList(), sh.join(all, sh.params()))
}

const recordValues = "h.body, h.tombstone, h.time"

// keepRecordsSQL keeps records by identity, given as three arrays without doubles.
func keepRecordsSQL(kept, records string) string {
	return fmt.Sprintf(`INSERT INTO %s (%s, %s) SELECT h.ctid IS NOT NULL, s.key, s.seq, s.at, %s
FROM (SELECT s.* FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[])) AS s (key, seq, at)
  WHERE NOT EXISTS (SELECT FROM %[1]s AS k WHERE k.key = ANY (ARRAY[s.key]) AND k.seq = s.seq AND k.at = s.at) OFFSET 0) AS s
LEFT JOIN %[5]s AS h ON h.key = ANY (ARRAY[s.key]) AND h.seq = s.seq AND h.at = s.at`, kept, wasColumn, recordColumns, recordValues, records)
}

// keepRecordsOfSQL keeps the records that a condition on h holds of.
func keepRecordsOfSQL(kept, records, condition string) string {
	return fmt.Sprintf(`INSERT INTO %s (%s, %s) SELECT true, h.key, h.seq, h.at, %s FROM %s AS h
WHERE %s AND NOT EXISTS (SELECT FROM %[1]s AS k WHERE k.key = h.key AND k.seq = h.seq AND k.at = h.at)`, kept, wasColumn, recordColumns, recordValues, records, condition)
}

// restoreSQL makes the target's rows those of state, which has a row for each key (or
// version) of which something is kept. Where a row could meet another under a second index,
// all go before any comes.
func (sh *shape) restoreSQL(state string) []string {
	columns := quoted(sh.keptColumns())
	list := strings.Join(columns, ", ")
	on := sh.onIdentity("e.")
	insert := fmt.Sprintf("INSERT INTO %s (%s)%s SELECT %s FROM %s AS e WHERE e.%s", sh.name, list, sh.overriding(), prefixed("e.", columns), state, wasColumn)
	switch {
	case sh.target.Kind == scd.Type2 && !sh.byVersion():
		return []string{fmt.Sprintf("DELETE FROM %s AS t USING %s AS e WHERE %s AND (NOT e.%s OR t.%s >= e.%[5]s)", sh.name, state, on, wasColumn, startColumn), insert}
	case len(sh.uniques) > 0 || sh.identityAlways:
		return []string{fmt.Sprintf("DELETE FROM %s AS t USING %s AS e WHERE %s", sh.name, state, on), insert}
	}
	sets := each(len(columns), ", ", func(i int) string { return columns[i] + " = e." + columns[i] })
	return []string{
		fmt.Sprintf("DELETE FROM %s AS t USING %s AS e WHERE %s AND NOT e.%s", sh.name, state, on, wasColumn),
		fmt.Sprintf("UPDATE %s AS t SET %s FROM %s AS e WHERE %s AND e.%s AND NOT pg_catalog.record_image_eq(ROW(%s), ROW(%s))", sh.name, sets, state, on, wasColumn, prefixed("t.", columns), prefixed("e.", columns)),
		fmt.Sprintf("%s AND NOT EXISTS (SELECT FROM %s AS t WHERE %s)", insert, sh.name, on),
	}
}

// image is the text of a row, by which equal rows of a target without a key are counted.
func image(alias string, columns []string) string {
	return fmt.Sprintf(`(ROW(%s)::text COLLATE "C")`, prefixed(alias, columns))
}

// netSQL makes net: how often each image is to come (or, below 0, to go) so that the target
// of a target without a key is what it was. state is everything that is kept of it.
func (sh *shape) netSQL(net, state string) string {
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s ON COMMIT DROP AS SELECT %s AS image, sum(CASE WHEN e.%s THEN 1 ELSE -1 END) AS n FROM %s AS e GROUP BY 1 HAVING sum(CASE WHEN e.%[3]s THEN 1 ELSE -1 END) <> 0",
		net, image("e.", quoted(sh.keptColumns())), wasColumn, state)
}

// leaveSQL deletes the rows that are to go, and comeSQL inserts those that are to come.
func (sh *shape) leaveSQL(net string) string {
	return fmt.Sprintf(`DELETE FROM %[1]s AS t USING (SELECT t.tableoid AS part, t.ctid AS place, n.n, row_number() OVER (PARTITION BY n.image) AS i FROM %[1]s AS t JOIN %[2]s AS n ON n.image = %[3]s WHERE n.n < 0) AS d
WHERE t.ctid = d.place AND t.tableoid = d.part AND d.i <= -d.n`, sh.name, net, image("t.", quoted(sh.keptColumns())))
}

func (sh *shape) comeSQL(net, state string) string {
	columns := quoted(sh.keptColumns())
	return fmt.Sprintf(`INSERT INTO %s (%s)%s SELECT %[4]s FROM (SELECT e.*, n.n AS "_tailrace_n", row_number() OVER (PARTITION BY n.image) AS "_tailrace_i" FROM %[5]s AS e JOIN %[6]s AS n ON n.image = %[7]s WHERE e.%[8]s AND n.n > 0) AS d WHERE "_tailrace_i" <= "_tailrace_n"`,
		sh.name, strings.Join(columns, ", "), sh.overriding(), prefixed("d.", columns), state, net, image("e.", columns), wasColumn)
}

// restoreRecordsSQL makes records those of state.
func restoreRecordsSQL(records, state string) []string {
	return []string{
		fmt.Sprintf("DELETE FROM %s AS h USING %s AS e WHERE h.key = e.key AND h.seq = e.seq AND h.at = e.at", records, state),
		fmt.Sprintf("INSERT INTO %s (%s) SELECT %[2]s FROM %s WHERE %s", records, recordColumns, state, wasColumn),
	}
}

// recallSQL fills the target with the rows of another as they were: from is that other's
// table, state what is kept of it, net as netSQL makes it where there is no key. columns are
// those that both have.
func (sh *shape) recallSQL(from *shape, state, net string, columns []string) []string {
	names := quoted(columns)
	into := fmt.Sprintf("INSERT INTO %s (%s)%s SELECT ", sh.name, strings.Join(names, ", "), sh.overriding())
	switch {
	case state == "":
		return []string{into + fmt.Sprintf("%s FROM %s AS t", prefixed("t.", names), from.name)}
	case net != "":
		here, kept := image("t.", quoted(from.keptColumns())), image("e.", quoted(from.keptColumns()))
		return []string{
			into + fmt.Sprintf(`%s FROM (SELECT t.*, n.n AS "_tailrace_n", row_number() OVER (PARTITION BY %s) AS "_tailrace_i" FROM %s AS t LEFT JOIN %s AS n ON n.image = %[2]s) AS d WHERE "_tailrace_n" IS NULL OR "_tailrace_i" > -"_tailrace_n"`, prefixed("d.", names), here, from.name, net),
			into + fmt.Sprintf(`%s FROM (SELECT e.*, n.n AS "_tailrace_n", row_number() OVER (PARTITION BY n.image) AS "_tailrace_i" FROM %s AS e JOIN %s AS n ON n.image = %s WHERE e.%s AND n.n > 0) AS d WHERE "_tailrace_i" <= "_tailrace_n"`, prefixed("d.", names), state, net, kept, wasColumn),
		}
	}
	gone := from.onIdentity("e.")
	if from.target.Kind == scd.Type2 && !from.byVersion() {
		gone += fmt.Sprintf(" AND (NOT e.%s OR t.%s >= e.%[2]s)", wasColumn, startColumn)
	}
	return []string{
		into + fmt.Sprintf("%s FROM %s AS t WHERE NOT EXISTS (SELECT FROM %s AS e WHERE %s)", prefixed("t.", names), from.name, state, gone),
		into + fmt.Sprintf("%s FROM %s AS e WHERE e.%s", prefixed("e.", names), state, wasColumn),
	}
}

// touchedSQL notes, for the change feed, the rows that restoreSQL may change. The notes are
// those of fed, in which versions are told apart by their start.
func (sh *shape) touchedSQL(fed *shape, notes, state string) []string {
	on := sh.onIdentity("e.")
	if sh.target.Kind == scd.Type2 && !sh.byVersion() {
		on += fmt.Sprintf(" AND (NOT e.%s OR t.%s >= e.%[2]s)", wasColumn, startColumn)
	}
	return []string{
		fmt.Sprintf("%s SELECT %s, true, %s FROM %s AS t JOIN %s AS e ON %s ON CONFLICT DO NOTHING", fed.noting(notes), strings.Join(fed.ownKeys(), ", "), prefixed("t.", fedColumns(sh.target)), sh.name, state, on),
		fmt.Sprintf("INSERT INTO %s (%s, was) SELECT %s, false FROM %s AS e WHERE e.%s ON CONFLICT DO NOTHING", notes, strings.Join(fed.noteKeys(), ", "), prefixed("e.", quoted(fed.identity())), state, wasColumn),
	}
}
