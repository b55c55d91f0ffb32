-- create
CREATE TABLE "public"."or""ders" (
  "id" bigint NOT NULL,
  "double" integer,
  "__START_AT" text COLLATE "C" NOT NULL,
  "__END_AT" text COLLATE "C"
) WITH (fillfactor = 80)

-- copy binary
COPY "public"."or""ders" ("id", "__START_AT", "__END_AT") FROM STDIN (FORMAT binary)

-- copy text
COPY "public"."or""ders" ("id", "__START_AT", "__END_AT") FROM STDIN

-- truncate
TRUNCATE "public"."or""ders"

-- row upsert
INSERT INTO "public"."or""ders" ("id") VALUES ($1::bigint) ON CONFLICT ("id") DO NOTHING

-- add key
ALTER TABLE "public"."or""ders" ADD PRIMARY KEY ("id", "__START_AT")

-- stage
CREATE TEMPORARY TABLE pg_temp."tailrace_stage_1" (a bytea, st text, en text, o1 bigint, c1 bigint, c2 integer) ON COMMIT DELETE ROWS

-- create records
CREATE TABLE _tailrace."records_0d264da2b38a18e1_or""ders" (
  key bytea NOT NULL,
  seq bytea NOT NULL,
  at bytea NOT NULL,
  body bytea NOT NULL,
  tombstone boolean NOT NULL,
  time bigint NOT NULL
) WITH (fillfactor = 95)

-- create records
CREATE INDEX ON _tailrace."records_0d264da2b38a18e1_or""ders" (key, seq, substr(at, 1, 1000))

-- look up
SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM unnest($1::bytea[]) WITH ORDINALITY AS l (key, n)
CROSS JOIN LATERAL (SELECT * FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = l.key OFFSET 0) AS h

-- look up the newest
SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM unnest($1::bytea[]) WITH ORDINALITY AS l (key, n)
CROSS JOIN LATERAL (SELECT * FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = l.key ORDER BY h.seq DESC, substr(h.at, 1, 1000) DESC LIMIT 1) AS h

-- look up suffixes
SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[])) WITH ORDINALITY AS l (key, seq, n)
CROSS JOIN LATERAL (SELECT * FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = l.key AND h.seq >= l.seq
  UNION ALL (SELECT * FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = l.key AND h.seq < l.seq ORDER BY h.seq DESC, substr(h.at, 1, 1000) DESC LIMIT 1)) AS h

-- keys below
SELECT key FROM _tailrace."records_0d264da2b38a18e1_or""ders" WHERE (seq, at) <= ($1::bytea, $2::bytea)

-- keys without a record
SELECT key FROM _tailrace."records_0d264da2b38a18e1_or""ders" GROUP BY key HAVING bool_and((seq, at) <= ('\x00ff'::bytea, '\x'::bytea)) AND NOT bool_and(tombstone)

-- truncate records
DELETE FROM _tailrace."records_0d264da2b38a18e1_or""ders" WHERE (seq, at) <= ($1::bytea, $2::bytea)

-- remove records
DELETE FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h USING ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[])) AS s (key, seq, at)
WHERE h.key = ANY (ARRAY[s.key]) AND h.seq = s.seq AND h.at = s.at

-- put records
WITH s AS MATERIALIZED (SELECT s.*, (SELECT h.ctid FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = s.key AND h.seq = s.seq AND h.at = s.at) AS own
  FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[]), unnest($4::bytea[]), unnest($5::boolean[]), unnest($6::bigint[])) AS s (key, seq, at, body, tombstone, time)),
u AS (UPDATE _tailrace."records_0d264da2b38a18e1_or""ders" AS h SET body = s.body, tombstone = s.tombstone, time = s.time FROM s WHERE h.ctid = s.own)
INSERT INTO _tailrace."records_0d264da2b38a18e1_or""ders" (key, seq, at, body, tombstone, time) SELECT key, seq, at, body, tombstone, time FROM s WHERE s.own IS NULL

-- forget
WITH d AS (DELETE FROM _tailrace."records_0d264da2b38a18e1_or""ders" WHERE tombstone AND time < $4::bigint RETURNING seq),
n AS (INSERT INTO _tailrace.counts AS c (pipeline, target_schema, target_table, forgotten) SELECT $1, $2, $3, count(*) FROM d HAVING count(*) > 0
  ON CONFLICT (pipeline, target_schema, target_table) DO UPDATE SET forgotten = c.forgotten + excluded.forgotten)
UPDATE _tailrace.sequenced SET horizon = greatest(horizon, (SELECT seq FROM d ORDER BY seq DESC LIMIT 1)) WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3

-- end versions
UPDATE "public"."or""ders" AS t SET "__END_AT" = s.en FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[])) AS s (o1, st, en) WHERE t."id" = ANY (ARRAY[s.o1]) AND t."__START_AT" = s.st

-- drop versions
DELETE FROM "public"."or""ders" AS t USING ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::text[])) AS s (o1, st) WHERE t."id" = ANY (ARRAY[s.o1]) AND t."__START_AT" = s.st

-- begin a version
INSERT INTO "public"."or""ders" ("id", "__START_AT", "__END_AT") VALUES ($1::bigint, $2::text, $3::text)

-- begin staged versions
INSERT INTO "public"."or""ders" ("id", "__START_AT", "__END_AT") SELECT s.c1, s.st, s.en FROM pg_temp."tailrace_stage_1" AS s

-- keep: make the table
CREATE TABLE _tailrace."undo" AS SELECT false AS "_tailrace_was", t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WITH NO DATA; CREATE UNIQUE INDEX ON _tailrace."undo" ("id", "__START_AT")

-- keep all
INSERT INTO _tailrace."undo" ("_tailrace_was", "id", "__START_AT", "__END_AT") SELECT true, t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE t."id" = k."id" AND t."__START_AT" = k."__START_AT")

-- keep keys
INSERT INTO _tailrace."undo" ("_tailrace_was", "id", "__START_AT", "__END_AT") SELECT t.ctid IS NOT NULL, coalesce(t."id", s.o1), coalesce(t."__START_AT", s.st), t."__END_AT" FROM (SELECT s.* FROM (SELECT DISTINCT ON (s.o1, s.st) s.* FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::text[])) AS s (o1, st) ORDER BY s.o1, s.st) AS s WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k."id" = ANY (ARRAY[s.o1]) AND k."__START_AT" = s.st) OFFSET 0) AS s LEFT JOIN "public"."or""ders" AS t ON t."id" = ANY (ARRAY[s.o1]) AND t."__START_AT" = s.st

-- rewind
DELETE FROM "public"."or""ders" AS t USING pg_temp."state" AS e WHERE t."id" = e."id" AND t."__START_AT" = e."__START_AT" AND NOT e."_tailrace_was"

-- rewind
UPDATE "public"."or""ders" AS t SET "id" = e."id", "__START_AT" = e."__START_AT", "__END_AT" = e."__END_AT" FROM pg_temp."state" AS e WHERE t."id" = e."id" AND t."__START_AT" = e."__START_AT" AND e."_tailrace_was" AND NOT pg_catalog.record_image_eq(ROW(t."id", t."__START_AT", t."__END_AT"), ROW(e."id", e."__START_AT", e."__END_AT"))

-- rewind
INSERT INTO "public"."or""ders" ("id", "__START_AT", "__END_AT") SELECT e."id", e."__START_AT", e."__END_AT" FROM pg_temp."state" AS e WHERE e."_tailrace_was" AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = e."id" AND t."__START_AT" = e."__START_AT")

-- keep records: make the table
CREATE TABLE _tailrace."undo" (
  "_tailrace_was" boolean NOT NULL,
  key bytea NOT NULL,
  seq bytea NOT NULL,
  at bytea NOT NULL,
  body bytea,
  tombstone boolean,
  time bigint
); CREATE INDEX ON _tailrace."undo" (key, seq, substr(at, 1, 1000))

-- keep records
INSERT INTO _tailrace."undo" ("_tailrace_was", key, seq, at, body, tombstone, time) SELECT h.ctid IS NOT NULL, s.key, s.seq, s.at, h.body, h.tombstone, h.time
FROM (SELECT s.* FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[])) AS s (key, seq, at)
  WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k.key = ANY (ARRAY[s.key]) AND k.seq = s.seq AND k.at = s.at) OFFSET 0) AS s
LEFT JOIN _tailrace."records_0d264da2b38a18e1_or""ders" AS h ON h.key = ANY (ARRAY[s.key]) AND h.seq = s.seq AND h.at = s.at

-- keep records of a truncate
INSERT INTO _tailrace."undo" ("_tailrace_was", key, seq, at, body, tombstone, time) SELECT true, h.key, h.seq, h.at, h.body, h.tombstone, h.time FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h
WHERE (h.seq, h.at) <= ($1::bytea, $2::bytea) AND NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k.key = h.key AND k.seq = h.seq AND k.at = h.at)

-- rewind records
DELETE FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h USING pg_temp."state" AS e WHERE h.key = e.key AND h.seq = e.seq AND h.at = e.at

-- rewind records
INSERT INTO _tailrace."records_0d264da2b38a18e1_or""ders" (key, seq, at, body, tombstone, time) SELECT key, seq, at, body, tombstone, time FROM pg_temp."state" WHERE "_tailrace_was"

-- recall
INSERT INTO "public"."or""ders" ("id", "__START_AT", "__END_AT") SELECT t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM pg_temp."state" AS e WHERE t."id" = e."id" AND t."__START_AT" = e."__START_AT")

-- recall
INSERT INTO "public"."or""ders" ("id", "__START_AT", "__END_AT") SELECT e."id", e."__START_AT", e."__END_AT" FROM pg_temp."state" AS e WHERE e."_tailrace_was"

-- invariant: versions end before or at their start
SELECT count(*) FROM "public"."or""ders" WHERE "__END_AT" <= "__START_AT"

-- invariant: keys have more than one open version
SELECT count(*) FROM (SELECT FROM "public"."or""ders" WHERE "__END_AT" IS NULL GROUP BY "id" HAVING count(*) > 1) AS x

-- invariant: versions overlap the next version of their key
SELECT count(*) FROM (SELECT "__END_AT" AS e, lead("__START_AT") OVER (PARTITION BY "id" ORDER BY "__START_AT", "__END_AT" NULLS LAST) AS next FROM "public"."or""ders") AS x WHERE next < e OR e IS NULL AND next IS NOT NULL

