-- create
CREATE TABLE "public"."or""ders" (
  "id" bigint NOT NULL,
  "Total" numeric
) WITH (fillfactor = 90)

-- copy binary
COPY "public"."or""ders" ("id", "Total") FROM STDIN (FORMAT binary)

-- copy text
COPY "public"."or""ders" ("id", "Total") FROM STDIN

-- truncate
TRUNCATE "public"."or""ders"

-- row upsert
INSERT INTO "public"."or""ders" ("id", "Total") VALUES ($1::bigint, $2::numeric) ON CONFLICT ("id") DO UPDATE SET "Total" = excluded."Total"

-- add key
ALTER TABLE "public"."or""ders" ADD PRIMARY KEY ("id")

-- stage
CREATE TEMPORARY TABLE pg_temp."tailrace_stage_1" (g smallint, a bytea, o1 bigint, c1 bigint, c2 numeric) ON COMMIT DELETE ROWS

-- create records
CREATE TABLE _tailrace."records_0d264da2b38a18e1_or""ders" (
  key bytea NOT NULL,
  seq bytea NOT NULL,
  at bytea NOT NULL,
  body bytea NOT NULL,
  tombstone boolean NOT NULL,
  time bigint NOT NULL
) WITH (fillfactor = 70)

-- create records
CREATE INDEX ON _tailrace."records_0d264da2b38a18e1_or""ders" (key)

-- look up
SELECT l.n, h.seq, h.at, h.body, h.tombstone, h.time FROM unnest($1::bytea[]) WITH ORDINALITY AS l (key, n)
CROSS JOIN LATERAL (SELECT * FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = l.key OFFSET 0) AS h

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
WITH s AS MATERIALIZED (SELECT s.*, h.own, h.old
  FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[]), unnest($4::bytea[]), unnest($5::boolean[]), unnest($6::bigint[]), unnest($7::bytea[]), unnest($8::bytea[])) AS s (key, seq, at, body, tombstone, time, oldseq, oldat)
  CROSS JOIN LATERAL (SELECT max(h.ctid) FILTER (WHERE h.seq = s.seq AND h.at = s.at) AS own, max(h.ctid) FILTER (WHERE h.seq = s.oldseq AND h.at = s.oldat) AS old FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h WHERE h.key = s.key) AS h),
u AS (UPDATE _tailrace."records_0d264da2b38a18e1_or""ders" AS h SET body = s.body, tombstone = s.tombstone, time = s.time, seq = s.seq, at = s.at FROM s WHERE h.ctid = coalesce(s.own, s.old)),
d AS (DELETE FROM _tailrace."records_0d264da2b38a18e1_or""ders" AS h USING s WHERE s.own IS NOT NULL AND h.ctid = s.old)
INSERT INTO _tailrace."records_0d264da2b38a18e1_or""ders" (key, seq, at, body, tombstone, time) SELECT key, seq, at, body, tombstone, time FROM s WHERE s.own IS NULL AND s.old IS NULL

-- move records
UPDATE _tailrace."records_0d264da2b38a18e1_or""ders" AS h SET seq = s.seq, at = s.at, body = s.body, tombstone = s.tombstone, time = s.time
FROM ROWS FROM (unnest($1::bytea[]), unnest($2::bytea[]), unnest($3::bytea[]), unnest($4::bytea[]), unnest($5::boolean[]), unnest($6::bigint[]), unnest($7::bytea[]), unnest($8::bytea[])) AS s (key, seq, at, body, tombstone, time, oldseq, oldat)
WHERE h.key = ANY (ARRAY[s.key]) AND h.seq = s.oldseq AND h.at = s.oldat

-- forget
WITH d AS (DELETE FROM _tailrace."records_0d264da2b38a18e1_or""ders" WHERE tombstone AND time < $4::bigint RETURNING seq),
n AS (INSERT INTO _tailrace.counts AS c (pipeline, target_schema, target_table, forgotten) SELECT $1, $2, $3, count(*) FROM d HAVING count(*) > 0
  ON CONFLICT (pipeline, target_schema, target_table) DO UPDATE SET forgotten = c.forgotten + excluded.forgotten)
UPDATE _tailrace.sequenced SET horizon = greatest(horizon, (SELECT seq FROM d ORDER BY seq DESC LIMIT 1)) WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3

-- row patch
WITH u AS (UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit($3::bytea, 1) = 1 THEN t."Total" ELSE $2::numeric END WHERE t."id" = $1::bigint RETURNING 1) SELECT 1 / (SELECT count(*) FROM u)

-- row patch, restored
UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit($3::bytea, 1) = 1 THEN t."Total" ELSE $2::numeric END WHERE t."id" = $1::bigint

-- row delete
DELETE FROM "public"."or""ders" AS t WHERE t."id" = $1::bigint

-- keys delete
DELETE FROM "public"."or""ders" AS t WHERE t."id" = ANY ($1::bigint[])

-- fill moves
UPDATE pg_temp."tailrace_stage_1" AS s SET c2 = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN t."Total" ELSE s.c2 END FROM "public"."or""ders" AS t WHERE s.g = 1 AND s.a IS NOT NULL AND t."id" = ANY (ARRAY[s.o1])

-- rows that cannot be filled, restored
DELETE FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 1 AND s.a IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = s.o1)

-- insert moves
INSERT INTO "public"."or""ders" ("id", "Total") SELECT s.c1, s.c2 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 1

-- insert staged
INSERT INTO "public"."or""ders" ("id", "Total") SELECT s.c1, s.c2 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 4 ON CONFLICT ("id") DO UPDATE SET "Total" = excluded."Total"

-- upsert staged
INSERT INTO "public"."or""ders" ("id", "Total") SELECT s.c1, s.c2 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 2 ON CONFLICT ("id") DO UPDATE SET "Total" = excluded."Total"

-- patch staged
UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN t."Total" ELSE s.c2 END FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 3 AND t."id" = ANY (ARRAY[s.c1])

-- delete staged keys
DELETE FROM "public"."or""ders" AS t USING pg_temp."tailrace_stage_1" AS s WHERE t."id" = ANY (ARRAY[s.c1])

-- keep: make the table
CREATE TABLE _tailrace."undo" AS SELECT false AS "_tailrace_was", t."id", t."Total" FROM "public"."or""ders" AS t WITH NO DATA; CREATE UNIQUE INDEX ON _tailrace."undo" ("id")

-- keep all
INSERT INTO _tailrace."undo" ("_tailrace_was", "id", "Total") SELECT true, t."id", t."Total" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE t."id" = k."id")

-- keep keys
INSERT INTO _tailrace."undo" ("_tailrace_was", "id", "Total") SELECT t.ctid IS NOT NULL, coalesce(t."id", s.o1), t."Total" FROM (SELECT s.* FROM (SELECT DISTINCT ON (s.o1) s.* FROM ROWS FROM (pg_catalog.unnest($1::bigint[])) AS s (o1) ORDER BY s.o1) AS s WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k."id" = ANY (ARRAY[s.o1])) OFFSET 0) AS s LEFT JOIN "public"."or""ders" AS t ON t."id" = ANY (ARRAY[s.o1])

-- rewind
DELETE FROM "public"."or""ders" AS t USING pg_temp."state" AS e WHERE t."id" = e."id" AND NOT e."_tailrace_was"

-- rewind
UPDATE "public"."or""ders" AS t SET "id" = e."id", "Total" = e."Total" FROM pg_temp."state" AS e WHERE t."id" = e."id" AND e."_tailrace_was" AND NOT pg_catalog.record_image_eq(ROW(t."id", t."Total"), ROW(e."id", e."Total"))

-- rewind
INSERT INTO "public"."or""ders" ("id", "Total") SELECT e."id", e."Total" FROM pg_temp."state" AS e WHERE e."_tailrace_was" AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = e."id")

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
INSERT INTO "public"."or""ders" ("id", "Total") SELECT t."id", t."Total" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM pg_temp."state" AS e WHERE t."id" = e."id")

-- recall
INSERT INTO "public"."or""ders" ("id", "Total") SELECT e."id", e."Total" FROM pg_temp."state" AS e WHERE e."_tailrace_was"

-- invariant: keys stand more than once
SELECT count(*) FROM (SELECT FROM "public"."or""ders" GROUP BY "id" HAVING count(*) > 1) AS x

