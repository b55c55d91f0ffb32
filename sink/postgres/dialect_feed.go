package postgres

import (
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// The text of what a change feed needs. The notes of a target are a temporary table with
// a row for each key (of a sequenced history for each version) that the open transaction
// may change, and what stood there before:
//
//	o1..    the key; ost the version's start (sequenced type 2)
//	was     there was such a row
//	c1..    the row; st, en its start and end (type 2, of an ordered one of the newest version)
//
// Of a target without a key they are what goes into the feed, in the order n: k, c1...

func feedTable(name string) string { return "_tailrace." + quote(name) }

// byVersion reports whether the notes hold versions, each by its start.
func (sh *shape) byVersion() bool { return sh.target.Kind == scd.Type2 && sh.target.Sequenced }

// fedColumns are the columns of the target that its feed has, quoted.
func fedColumns(t *scd.Target) []string {
	var names []string
	for i := range t.Columns {
		names = append(names, quote(t.Columns[i].Name))
	}
	if t.Kind == scd.Type2 {
		names = append(names, startColumn, endColumn)
	}
	return names
}

// noteNames are the notes' names of fedColumns.
func (sh *shape) noteNames() []string {
	var names []string
	for i := range sh.columns {
		names = append(names, stageColumn(i))
	}
	if sh.target.Kind == scd.Type2 {
		names = append(names, "st", "en")
	}
	return names
}

// noteKeys are the notes' columns that say which row it is.
func (sh *shape) noteKeys() []string {
	var names []string
	for k := range sh.keys {
		names = append(names, originColumn(k))
	}
	if sh.byVersion() {
		names = append(names, "ost")
	}
	return names
}

// ownKeys are the columns of the target's row t that noteKeys stand for.
func (sh *shape) ownKeys() []string {
	var names []string
	for _, k := range sh.keys {
		names = append(names, "t."+sh.column(k))
	}
	if sh.byVersion() {
		names = append(names, "t."+startColumn)
	}
	return names
}

func qualifiedBy(alias string, names []string) []string {
	out := make([]string, len(names))
	for i := range names {
		out[i] = alias + names[i]
	}
	return out
}

func prefixed(alias string, names []string) string {
	return strings.Join(qualifiedBy(alias, names), ", ")
}

// createFeedSQL makes a feed. Its columns have the target's types. The identity's index is
// no primary key, so that the table has no replica identity: what is removed from it is
// not published, and a pipeline that follows it sees inserts alone.
func createFeedSQL(name string, target change.Name, t *scd.Target) []string {
	feed := feedTable(name)
	return []string{
		fmt.Sprintf("CREATE TABLE %s AS SELECT NULL::bigint AS %s, NULL::text AS %s, NULL::text AS %s, NULL::timestamptz AS %s, %s FROM %s AS t WITH NO DATA", feed,
			quote(sink.FeedID), quote(sink.FeedType), quote(sink.FeedMark), quote(sink.FeedCommitTime), prefixed("t.", fedColumns(t)), qualifiedName(target)),
		fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %[2]s SET NOT NULL, ALTER COLUMN %[2]s ADD GENERATED ALWAYS AS IDENTITY, ALTER COLUMN %s SET NOT NULL, ALTER COLUMN %s SET NOT NULL, ALTER COLUMN %s SET NOT NULL", feed,
			quote(sink.FeedID), quote(sink.FeedType), quote(sink.FeedMark), quote(sink.FeedCommitTime)),
		fmt.Sprintf("CREATE UNIQUE INDEX ON %s (%s)", feed, quote(sink.FeedID)),
	}
}

// createNotesSQL makes the notes. They are emptied when they are read, so that a commit
// has nothing to do with those of other targets; with drop they go with the transaction.
func (sh *shape) createNotesSQL(notes string, drop bool) string {
	end := ""
	if drop {
		end = " ON COMMIT DROP"
	}
	image := make([]string, 0, len(sh.columns)+2)
	for i, name := range fedColumns(sh.target) {
		image = append(image, "t."+name+" AS "+sh.noteNames()[i])
	}
	if sh.target.AppendOnly {
		return fmt.Sprintf("CREATE TEMPORARY TABLE %s%s AS SELECT NULL::bigint AS n, NULL::text AS k, %s FROM %s AS t WITH NO DATA; ALTER TABLE %[1]s ALTER COLUMN n SET NOT NULL, ALTER COLUMN n ADD GENERATED ALWAYS AS IDENTITY, ALTER COLUMN k SET DEFAULT '%[5]s'",
			notes, end, strings.Join(image, ", "), sh.name, sink.FeedInsert)
	}
	var keys []string
	for i, name := range sh.ownKeys() {
		keys = append(keys, name+" AS "+sh.noteKeys()[i])
	}
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s%s AS SELECT %s, false AS was, %s FROM %s AS t WITH NO DATA; CREATE UNIQUE INDEX ON %[1]s (%[6]s)",
		notes, end, strings.Join(keys, ", "), strings.Join(image, ", "), sh.name, strings.Join(sh.noteKeys(), ", "))
}

// noting begins the statement that writes notes.
func (sh *shape) noting(notes string) string {
	return fmt.Sprintf("INSERT INTO %s (%s, was, %s)", notes, strings.Join(sh.noteKeys(), ", "), strings.Join(sh.noteNames(), ", "))
}

// noteKeysSQL notes keys (of a sequenced history with starts) that are given as arrays;
// where a key's column is an array itself, one of them as values.
func (sh *shape) noteKeysSQL(notes string) string {
	from := sh.versionsFrom(false)
	if !sh.byVersion() {
		from = sh.keysFrom()
	}
	of := fmt.Sprintf("%s AS t ON %s", sh.name, sh.onStage(sh.originKey))
	keys := each(len(sh.keys), ", ", func(k int) string { return "s." + originColumn(k) })
	switch {
	case sh.byVersion():
		keys += ", s.st"
		of += " AND t." + startColumn + " " + sh.start.equals + " s.st"
	case sh.target.Kind == scd.Type2:
		of = fmt.Sprintf("LATERAL (SELECT t.ctid, %s FROM %s AS t WHERE %s ORDER BY t.%s DESC LIMIT 1) AS t ON true",
			prefixed("t.", fedColumns(sh.target)), sh.name, sh.onKey(sh.originKey), startColumn)
	}
	return fmt.Sprintf("%s SELECT %s, t.ctid IS NOT NULL, %s FROM %s LEFT JOIN %s ON CONFLICT DO NOTHING", sh.noting(notes), keys, prefixed("t.", fedColumns(sh.target)), from, of)
}

// keysFrom is the relation s of keys, as versionsFrom is of versions.
func (sh *shape) keysFrom() string {
	column := func(k int) *column { return &sh.columns[sh.keys[k]] }
	if sh.nestedKey() {
		return "(SELECT " + each(len(sh.keys), ", ", func(k int) string { return fmt.Sprintf("$%d::%s AS %s", k+1, column(k).base, originColumn(k)) }) + ") AS s"
	}
	return fmt.Sprintf("ROWS FROM (%s) AS s (%s)",
		each(len(sh.keys), ", ", func(k int) string { return fmt.Sprintf("pg_catalog.unnest($%d::%s)", k+1, column(k).array) }),
		each(len(sh.keys), ", ", originColumn))
}

// noteAllSQL notes every row that is not noted yet, of an ordered history the newest
// version of each key: older ones never change.
func (sh *shape) noteAllSQL(notes string) string {
	if sh.target.AppendOnly {
		return fmt.Sprintf("INSERT INTO %s (k, %s) SELECT '%s', %s FROM %s AS t", notes, strings.Join(sh.noteNames(), ", "), sink.FeedDelete, prefixed("t.", fedColumns(sh.target)), sh.name)
	}
	distinct, order := "", ""
	if sh.target.Kind == scd.Type2 && !sh.byVersion() {
		keys := strings.Join(sh.ownKeys(), ", ")
		distinct, order = "DISTINCT ON ("+keys+") ", fmt.Sprintf(" ORDER BY %s, t.%s DESC", keys, startColumn)
	}
	return fmt.Sprintf("%s SELECT %s%s, true, %s FROM %s AS t%s ON CONFLICT DO NOTHING", sh.noting(notes), distinct, strings.Join(sh.ownKeys(), ", "),
		prefixed("t.", fedColumns(sh.target)), sh.name, order)
}

// intoFeed begins a statement that writes the feed. Parameters are the mark and the
// commit time.
func (sh *shape) intoFeed(kind string, image []string) string {
	return fmt.Sprintf("INSERT INTO %s (%s, %s, %s, %s) SELECT %s, $1::text, coalesce($2::timestamptz, pg_catalog.clock_timestamp()), %s", sh.feed.table,
		quote(sink.FeedType), quote(sink.FeedMark), quote(sink.FeedCommitTime), strings.Join(fedColumns(sh.target), ", "), kind, strings.Join(image, ", "))
}

// feedSQL compares what is noted with what is there and writes the feed. A row's images
// come one behind the other, and so do their numbers. Where whole tables are compared the
// planner may join them as it likes.
func (sh *shape) feedSQL(notes string, whole bool) string {
	own, noted := fedColumns(sh.target), sh.noteNames()
	if sh.target.AppendOnly {
		return sh.intoFeed("s.k", noted) + " FROM " + notes + " AS s ORDER BY s.n"
	}
	on := sh.onStage(sh.originKey)
	if whole {
		on = sh.onKey(sh.originKey)
	}
	came := "NOT s.was"
	switch {
	case sh.byVersion():
		on += " AND t." + startColumn + " " + sh.start.equals + " s.ost"
	case sh.target.Kind == scd.Type2:
		on += fmt.Sprintf(" AND (NOT s.was OR t.%s >= s.st)", startColumn)
		came += fmt.Sprintf(" OR t.%s > s.st", startColumn)
	}
	image := make([]string, len(own))
	for i := range own {
		image[i] = fmt.Sprintf("CASE WHEN v.kind IN ('%s', '%s') THEN s.%s ELSE t.%s END", sink.FeedDelete, sink.FeedBefore, noted[i], own[i])
	}
	kinds := fmt.Sprintf(`CASE WHEN t.ctid IS NULL THEN CASE WHEN s.was THEN '{%s}' ELSE '{}' END WHEN %s THEN '{%s}'
  WHEN pg_catalog.record_image_eq(ROW(%s), ROW(%s)) THEN '{}' ELSE '{%s,%s}' END`,
		sink.FeedDelete, came, sink.FeedInsert, prefixed("t.", own), prefixed("s.", noted), sink.FeedBefore, sink.FeedAfter)
	return fmt.Sprintf("%s FROM %s AS s LEFT JOIN %s AS t ON %s CROSS JOIN LATERAL pg_catalog.unnest((%s)::text[]) AS v (kind)", sh.intoFeed("v.kind", image), notes, sh.name, on, kinds)
}

// feedNewSQL writes the rows into the feed whose key is not noted, or all of them.
func (sh *shape) feedNewSQL(notes string) string {
	sql := sh.intoFeed("'"+sink.FeedInsert+"'", qualifiedBy("t.", fedColumns(sh.target))) + " FROM " + sh.name + " AS t"
	if notes == "" {
		return sql
	}
	on := sh.onKey(sh.originKey)
	if sh.byVersion() {
		on += " AND t." + startColumn + " " + sh.start.equals + " s.ost"
	}
	return fmt.Sprintf("%s WHERE NOT EXISTS (SELECT FROM %s AS s WHERE %s)", sql, notes, on)
}

// trimFeedSQL removes what is older than $1 microseconds among the oldest $2 changes, and
// counts it.
func trimFeedSQL(feed string) string {
	return fmt.Sprintf(`WITH d AS (DELETE FROM %s WHERE %[2]s < (SELECT min(%[2]s) FROM %[1]s) + $2::bigint AND %[3]s < pg_catalog.clock_timestamp() - $1::bigint * interval '1 microsecond' RETURNING 1) SELECT count(*) FROM d`,
		feed, quote(sink.FeedID), quote(sink.FeedCommitTime))
}
