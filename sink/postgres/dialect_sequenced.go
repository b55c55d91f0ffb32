package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unicode/utf8"

	"tailrace/internal/change"
	"tailrace/scd"
)

// What a sequenced target remembers is one table of records in _tailrace:
//
//	key, seq, at   identity: key, sequence and place in the source, compared as bytes
//	body           what the event said; nothing is read into it
//	tombstone      a delete that nothing visible depends on
//	time           the clock of retention, µs since the Unix epoch
//
// Its index is on the key alone in type 1, where a key has a handful of records and
// the newest takes the place of the one before: no indexed column changes then, so
// the server updates the row on its page and the index stays as it is. In type 2,
// where a key has its whole history and records stay, it is on the identity, so that
// the newest record of a key is one descent away. A place can hold a file's path, which
// may be longer than an entry of an index admits: only its first placeIndexed bytes are
// in it. The identity is therefore not unique by an index; the lane knows what is there.
//
// Records travel as arrays of parameters, one array a column, and statements go
// through them in the order they come in, which is that of the keys.

// placeIndexed is far above the length of places in use, and with a key and a sequence
// far below the 2,700 bytes of an index entry.
const placeIndexed = 1000

const newestFirst = "ORDER BY h.seq DESC, substr(h.at, 1, 1000) DESC LIMIT 1"

const recordColumns = "key, seq, at, body, tombstone, time"

// recordsName names a target's table of records: its own for every pipeline and
// target, within the 63 bytes of an identifier, and to be recognized by a person.
func recordsName(pipeline string, n change.Name) string {
	sum := sha256.Sum256([]byte(pipeline + "\x00" + n.Schema + "\x00" + n.Table))
	name := "records_" + hex.EncodeToString(sum[:8]) + "_" + n.Table
	for len(name) > 63 || !utf8.ValidString(name) {
		name = name[:len(name)-1]
	}
	return name
}

func recordsTable(name string) string { return "_tailrace." + quote(name) }

// createRecordsSQL makes the table of records. Room on its pages is for the records
// that take another's place.
func createRecordsSQL(name string, kind scd.Kind) []string {
	index, fill := "key", 70
	if kind == scd.Type2 {
		index, fill = "key, seq, substr(at, 1, 1000)", 95
	}
	return []string{
		fmt.Sprintf("CREATE TABLE %s (\n  key bytea NOT NULL,\n  seq bytea NOT NULL,\n  at bytea NOT NULL,\n  body bytea NOT NULL,\n  tombstone boolean NOT NULL,\n  time bigint NOT NULL\n) WITH (fillfactor = %d)", recordsTable(name), fill),
		fmt.Sprintf("CREATE INDEX ON %s (%s)", recordsTable(name), index),
	}
}

// dropRecordsSQL forgets what is remembered of a target.
func dropRecordsSQL(pipeline string, n change.Name) []string {
	where := fmt.Sprintf(" WHERE pipeline = %s AND target_schema = %s AND target_table = %s", literal(pipeline), literal(n.Schema), literal(n.Table))
	return []string{"DROP TABLE " + recordsTable(recordsName(pipeline, n)), "DELETE FROM _tailrace.sequenced" + where, "DELETE FROM _tailrace.counts" + where}
}

const sequencedRowSQL = `INSERT INTO _tailrace.sequenced (pipeline, target_schema, target_table, records) VALUES (%s, %s, %s, %s) ON CONFLICT (pipeline, target_schema, target_table) DO UPDATE SET records = excluded.records`

const recordArrays = "unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[]), unnest($4::bytea[]), unnest($5::boolean[]), unnest($6::bigint[])"

// lookupSQL reads every record of keys, given as an array. It gives each record with
// the number of its key.
func lookupSQL(records string) string {
	return fmt.Sprintf(`SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM unnest($1::bytea[]) WITH ORDINALITY AS l (key, n)
CROSS JOIN LATERAL (SELECT * FROM %s AS h WHERE h.key = l.key OFFSET 0) AS h`, records)
}

// newestSQL reads the newest record of keys.
func newestSQL(records string) string {
	return fmt.Sprintf(`SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM unnest($1::bytea[]) WITH ORDINALITY AS l (key, n)
CROSS JOIN LATERAL (SELECT * FROM %s AS h WHERE h.key = l.key %s) AS h`, records, newestFirst)
}

// suffixSQL reads of each key the records from a sequence on and the newest below it.
func suffixSQL(records string) string {
	return fmt.Sprintf(`SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[])) WITH ORDINALITY AS l (key, seq, n)
CROSS JOIN LATERAL (SELECT * FROM %[1]s AS h WHERE h.key = l.key AND h.seq >= l.seq
  UNION ALL (SELECT * FROM %[1]s AS h WHERE h.key = l.key AND h.seq < l.seq %[2]s)) AS h`, records, newestFirst)
}

// belowSQL reads the keys with a record at ($1, $2) or below.
func belowSQL(records string) string {
	return fmt.Sprintf("SELECT key FROM %s WHERE (seq, at) <= ($1::bytea, $2::bytea)", records)
}

// keysSQL reads the first keys behind $1, each once.
func keysSQL(records string, limit int) string {
	return fmt.Sprintf("SELECT DISTINCT key FROM %s WHERE key > $1::bytea ORDER BY key LIMIT %d", records, limit)
}

// orphansSQL reads the keys of which a truncate at p leaves no record, and which
// may have a row.
func orphansSQL(records, seq, at string) string {
	return fmt.Sprintf("SELECT key FROM %s GROUP BY key HAVING bool_and((seq, at) <= (%s, %s)) AND NOT bool_and(tombstone)", records, seq, at)
}

func truncateRecordsSQL(records string) string {
	return fmt.Sprintf("DELETE FROM %s WHERE (seq, at) <= ($1::bytea, $2::bytea)", records)
}

// removeRecordsSQL deletes records by identity, given as three arrays.
func removeRecordsSQL(records string) string {
	return fmt.Sprintf(`DELETE FROM %s AS h USING ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[])) AS s (key, seq, at)
WHERE h.key = ANY (ARRAY[s.key]) AND h.seq = s.seq AND h.at = s.at`, records)
}

// putRecordsSQL writes records, given as arrays of recordColumns and, in type 1, of
// the identity whose place each takes (NULL: of none). own is the record that has
// the identity already, old the one whose place is taken.
func putRecordsSQL(records string, kind scd.Kind) string {
	sets := "SET body = s.body, tombstone = s.tombstone, time = s.time"
	if kind == scd.Type2 {
		return fmt.Sprintf(`WITH s AS MATERIALIZED (SELECT s.*, (SELECT h.ctid FROM %[1]s AS h WHERE h.key = s.key AND h.seq = s.seq AND h.at = s.at) AS own
  FROM ROWS FROM (%[2]s) AS s (%[3]s)),
u AS (UPDATE %[1]s AS h %[4]s FROM s WHERE h.ctid = s.own)
INSERT INTO %[1]s (%[3]s) SELECT %[3]s FROM s WHERE s.own IS NULL`, records, recordArrays, recordColumns, sets)
	}
	return fmt.Sprintf(`WITH s AS MATERIALIZED (SELECT s.*, h.own, h.old
  FROM ROWS FROM (%[2]s, unnest($7::bytea[]), unnest($8::bytea[])) AS s (%[3]s, oldseq, oldat)
  CROSS JOIN LATERAL (SELECT max(h.ctid) FILTER (WHERE h.seq = s.seq AND h.at = s.at) AS own, max(h.ctid) FILTER (WHERE h.seq = s.oldseq AND h.at = s.oldat) AS old FROM %[1]s AS h WHERE h.key = s.key) AS h),
u AS (UPDATE %[1]s AS h %[4]s, seq = s.seq, at = s.at FROM s WHERE h.ctid = coalesce(s.own, s.old)),
d AS (DELETE FROM %[1]s AS h USING s WHERE s.own IS NOT NULL AND h.ctid = s.old)
INSERT INTO %[1]s (%[3]s) SELECT %[3]s FROM s WHERE s.own IS NULL AND s.old IS NULL`, records, recordArrays, recordColumns, sets)
}

// moveRecordsSQL puts records, none of which is there, in the place of others, all of
// which are; type 1, with the parameters of putRecordsSQL.
func moveRecordsSQL(records string) string {
	return fmt.Sprintf(`UPDATE %s AS h SET seq = s.seq, at = s.at, body = s.body, tombstone = s.tombstone, time = s.time
FROM ROWS FROM (%s, unnest($7::bytea[]), unnest($8::bytea[])) AS s (%s, oldseq, oldat)
WHERE h.key = ANY (ARRAY[s.key]) AND h.seq = s.oldseq AND h.at = s.oldat`, records, recordArrays, recordColumns)
}

// forgetSQL deletes the tombstones with a time below $4, counts them, and raises the
// horizon, of the target that $1 to $3 name, to the highest sequence of them.
func forgetSQL(records string) string {
	return fmt.Sprintf(`WITH d AS (DELETE FROM %s WHERE tombstone AND time < $4::bigint RETURNING seq),
n AS (INSERT INTO _tailrace.counts AS c (pipeline, target_schema, target_table, forgotten) SELECT $1, $2, $3, count(*) FROM d HAVING count(*) > 0
  ON CONFLICT (pipeline, target_schema, target_table) DO UPDATE SET forgotten = c.forgotten + excluded.forgotten)
UPDATE _tailrace.sequenced SET horizon = greatest(horizon, (SELECT seq FROM d ORDER BY seq DESC LIMIT 1)) WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`, records)
}

const (
	headSQL    = `SELECT truncated_seq, truncated_at, horizon FROM _tailrace.sequenced WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`
	countedSQL = `SELECT duplicates, late, ties, truncated, beyond, unknown, forgotten FROM _tailrace.counts WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`
	countSQL   = `INSERT INTO _tailrace.counts AS c (pipeline, target_schema, target_table, duplicates, late, ties, truncated, beyond, unknown) VALUES ($1, $2, $3, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint)
ON CONFLICT (pipeline, target_schema, target_table) DO UPDATE SET duplicates = c.duplicates + excluded.duplicates, late = c.late + excluded.late, ties = c.ties + excluded.ties, truncated = c.truncated + excluded.truncated, beyond = c.beyond + excluded.beyond, unknown = c.unknown + excluded.unknown`
	// A horizon never goes back: what was forgotten stays forgotten.
	saveHeadSQL = `UPDATE _tailrace.sequenced SET truncated_seq = $4, truncated_at = $5, horizon = greatest(horizon, $6) WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`
	resetSQL    = `WITH c AS (DELETE FROM _tailrace.counts WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3)
UPDATE _tailrace.sequenced SET truncated_seq = NULL, truncated_at = NULL, horizon = NULL WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`
)

// The versions of a sequenced type 2 target are named by key and start, given as
// arrays: o1.. the key, st the start, en another end. Arrays of arrays do not come
// apart into their rows: a key with such a column is given as one row of values.

func (sh *shape) nestedKey() bool {
	for _, k := range sh.keys {
		if sh.columns[k].nested {
			return true
		}
	}
	return false
}

// versionsFrom is the relation s of versions; each of its columns is a parameter.
func (sh *shape) versionsFrom(end bool) string {
	var columns []column
	var names []string
	for k, i := range sh.keys {
		columns, names = append(columns, sh.columns[i]), append(names, originColumn(k))
	}
	columns, names = append(columns, sh.start), append(names, "st")
	if end {
		columns, names = append(columns, sh.start), append(names, "en")
	}
	if sh.nestedKey() {
		return "(SELECT " + each(len(names), ", ", func(i int) string { return fmt.Sprintf("$%d::%s AS %s", i+1, columns[i].base, names[i]) }) + ") AS s"
	}
	return fmt.Sprintf("ROWS FROM (%s) AS s (%s)",
		each(len(names), ", ", func(i int) string { return fmt.Sprintf("pg_catalog.unnest($%d::%s)", i+1, columns[i].array) }),
		each(len(names), ", ", func(i int) string { return names[i] }))
}

func (sh *shape) onVersion() string {
	return sh.onStage(sh.originKey) + " AND t." + startColumn + " " + sh.start.equals + " s.st"
}

// endVersionsSQL gives versions another end. Every one of them must be there.
func (sh *shape) endVersionsSQL() string {
	return fmt.Sprintf("UPDATE %s AS t SET %s = s.en FROM %s WHERE %s", sh.name, endColumn, sh.versionsFrom(true), sh.onVersion())
}

// dropVersionsSQL deletes versions. Every one of them must be there.
func (sh *shape) dropVersionsSQL() string {
	return fmt.Sprintf("DELETE FROM %s AS t USING %s WHERE %s", sh.name, sh.versionsFrom(false), sh.onVersion())
}

// beginVersionSQL inserts one version given as parameters: the columns that we
// write, start and end.
func (sh *shape) beginVersionSQL() string {
	n := len(sh.writes())
	return fmt.Sprintf("INSERT INTO %s (%s, %s, %s)%s VALUES (%s, $%d::%s, $%d::%[8]s)", sh.name, sh.columnList(), startColumn, endColumn, sh.overriding(),
		sh.join(all, sh.params()), n+1, sh.start.base, n+2)
}

// beginStagedSQL inserts the stage's versions.
func (sh *shape) beginStagedSQL() string {
	return fmt.Sprintf("INSERT INTO %s (%s, %s, %s)%s SELECT %s, s.st, s.en FROM %s AS s", sh.name, sh.columnList(), startColumn, endColumn, sh.overriding(), sh.join(all, sentColumn), sh.stage.name)
}

// bytesLiteral makes a bytea constant.
func bytesLiteral(b []byte) string { return `'\x` + hex.EncodeToString(b) + `'::bytea` }

// Files and events set aside, as arrays: one statement a batch. unnest keeps the
// order, and numbers are given in it.
const (
	saveFilesSQL = `INSERT INTO _tailrace.files (pipeline, relation_schema, relation_table, path, size, modified, checksum, rows)
SELECT $1::text, s.* FROM ROWS FROM (unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::bigint[]), unnest($6::bigint[]), unnest($7::text[]), unnest($8::bigint[])) AS s
ON CONFLICT (pipeline, relation_schema, relation_table, path) DO UPDATE SET size = excluded.size, modified = excluded.modified, checksum = excluded.checksum, rows = excluded.rows`
	filesSQL     = `SELECT relation_schema, relation_table, path, size, modified, checksum, rows FROM _tailrace.files WHERE pipeline = $1`
	saveAsideSQL = `INSERT INTO _tailrace.quarantine (pipeline, flow, target_schema, target_table, reason, position, at, time, event)
SELECT $1::text, s.f, s.ts, s.tt, s.r, s.p, s.a, s.t, s.e FROM ROWS FROM (unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]), unnest($6::text[]), unnest($7::bytea[]), unnest($8::timestamptz[]), unnest($9::text[])) WITH ORDINALITY AS s (f, ts, tt, r, p, a, t, e, n) ORDER BY s.n`
	asideSQL = `SELECT id, flow, target_schema, target_table, reason, position, at, (extract(epoch FROM time) * 1000000)::bigint, event FROM _tailrace.quarantine
WHERE pipeline = $1 AND ($2 = '' OR flow = $2) AND resolved IS NULL ORDER BY id`
	forgetFilesSQL   = `DELETE FROM _tailrace.files WHERE pipeline = $1`
	forgetAsideSQL   = `DELETE FROM _tailrace.quarantine WHERE pipeline = $1`
	unresolvedSQL    = `SELECT flow, count(*) FROM _tailrace.quarantine WHERE pipeline = $1 AND resolved IS NULL GROUP BY flow`
	resolveTargetSQL = `UPDATE _tailrace.quarantine SET resolved = clock_timestamp() WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3 AND resolved IS NULL`
	resolveFlowSQL   = resolveTargetSQL + ` AND flow = $4`

	saveViolationSQL    = `INSERT INTO _tailrace.violations AS v VALUES ($1, $2, $3, $4, $5, $6, $7::bigint) ON CONFLICT (pipeline, target_schema, target_table, flow, expectation, met) DO UPDATE SET events = v.events + excluded.events`
	violationsSQL       = `SELECT target_schema, target_table, flow, expectation, met, events FROM _tailrace.violations WHERE pipeline = $1 ORDER BY 1, 2, 3, 4, 5`
	forgetViolationsSQL = `DELETE FROM _tailrace.violations WHERE pipeline = $1`
	forgetTargetsSQL    = forgetViolationsSQL + ` AND target_schema = $2 AND target_table = $3`
	forgetFlowsSQL      = forgetTargetsSQL + ` AND flow = $4`

	resolveSQL = `UPDATE _tailrace.quarantine SET resolved = clock_timestamp() WHERE pipeline = $1 AND id = ANY ($2::bigint[]) AND resolved IS NULL`
)
