-- create
CREATE TABLE "public"."or""ders" (
  "id" bigint NOT NULL,
  "Total" numeric,
  "select" text
) WITH (fillfactor = 90)

-- copy binary
COPY "public"."or""ders" ("id", "Total", "select") FROM STDIN (FORMAT binary)

-- copy text
COPY "public"."or""ders" ("id", "Total", "select") FROM STDIN

-- truncate
TRUNCATE "public"."or""ders"

-- row upsert
INSERT INTO "public"."or""ders" ("id", "Total", "select") VALUES ($1::bigint, $2::numeric, $3::text) ON CONFLICT ("id") DO UPDATE SET "Total" = excluded."Total", "select" = excluded."select"

-- add key
ALTER TABLE "public"."or""ders" ADD PRIMARY KEY ("id")

-- stage
CREATE TEMPORARY TABLE pg_temp."tailrace_stage_1" (g smallint, a bytea, o1 bigint, c1 bigint, c2 numeric, c3 text) ON COMMIT DELETE ROWS

-- copy into stage, gaps false
COPY pg_temp."tailrace_stage_1" (g, c1, c2, c3) FROM STDIN (FORMAT binary)

-- copy into stage, gaps true
COPY pg_temp."tailrace_stage_1" (g, a, o1, c1, c2, c3) FROM STDIN (FORMAT binary)

-- row patch
WITH u AS (UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit($4::bytea, 1) = 1 THEN t."Total" ELSE $2::numeric END, "select" = CASE WHEN pg_catalog.get_bit($4::bytea, 2) = 1 THEN t."select" ELSE $3::text END WHERE t."id" = $1::bigint RETURNING 1) SELECT 1 / (SELECT count(*) FROM u)

-- row patch, restored
UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit($4::bytea, 1) = 1 THEN t."Total" ELSE $2::numeric END, "select" = CASE WHEN pg_catalog.get_bit($4::bytea, 2) = 1 THEN t."select" ELSE $3::text END WHERE t."id" = $1::bigint

-- row delete
DELETE FROM "public"."or""ders" AS t WHERE t."id" = $1::bigint

-- keys delete
DELETE FROM "public"."or""ders" AS t WHERE t."id" = ANY ($1::bigint[])

-- fill moves
UPDATE pg_temp."tailrace_stage_1" AS s SET c2 = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN t."Total" ELSE s.c2 END, c3 = CASE WHEN pg_catalog.get_bit(s.a, 2) = 1 THEN t."select" ELSE s.c3 END FROM "public"."or""ders" AS t WHERE s.g = 1 AND s.a IS NOT NULL AND t."id" = ANY (ARRAY[s.o1])

-- rows that cannot be filled, restored
DELETE FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 1 AND s.a IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = s.o1)

-- insert moves
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT s.c1, s.c2, s.c3 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 1

-- insert staged
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT s.c1, s.c2, s.c3 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 4 ON CONFLICT ("id") DO UPDATE SET "Total" = excluded."Total", "select" = excluded."select"

-- upsert staged
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT s.c1, s.c2, s.c3 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 2 ON CONFLICT ("id") DO UPDATE SET "Total" = excluded."Total", "select" = excluded."select"

-- patch staged
UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN t."Total" ELSE s.c2 END, "select" = CASE WHEN pg_catalog.get_bit(s.a, 2) = 1 THEN t."select" ELSE s.c3 END FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 3 AND t."id" = ANY (ARRAY[s.c1])

-- delete staged keys
DELETE FROM "public"."or""ders" AS t USING pg_temp."tailrace_stage_1" AS s WHERE t."id" = ANY (ARRAY[s.c1])

-- resync
DELETE FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."id" = s.c1 AND pg_catalog.record_image_eq(ROW(t."id"), ROW(s.c1)))

-- resync
UPDATE "public"."or""ders" AS t SET "Total" = s.c2, "select" = s.c3 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."id" = s.c1 AND NOT pg_catalog.record_image_eq(ROW(t."Total", t."select"), ROW(s.c2, s.c3))

-- resync
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT s.c1, s.c2, s.c3 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = s.c1)

-- repair
CREATE TEMPORARY TABLE tailrace_gone (c1 bigint) ON COMMIT DROP

-- repair
DELETE FROM "public"."or""ders" AS t USING pg_temp.tailrace_gone AS s WHERE t."id" = s.c1 AND pg_catalog.record_image_eq(ROW(t."id"), ROW(s.c1))

-- repair
DELETE FROM "public"."or""ders" AS t USING (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."id" = s.c1 AND NOT pg_catalog.record_image_eq(ROW(t."id"), ROW(s.c1))

-- repair
UPDATE "public"."or""ders" AS t SET "Total" = s.c2, "select" = s.c3 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."id" = s.c1 AND NOT pg_catalog.record_image_eq(ROW(t."Total", t."select"), ROW(s.c2, s.c3))

-- repair
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT s.c1, s.c2, s.c3 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = s.c1)

-- note what differs
INSERT INTO _tailrace."notes" (c1) SELECT s.c1 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = s.c1 AND pg_catalog.record_image_eq(ROW(t."id", t."Total", t."select"), ROW(s.c1, s.c2, s.c3)))

-- note what differs
INSERT INTO _tailrace."notes" (c1) SELECT t."id" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."id" = s.c1)

-- resync of what is noted
DELETE FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::bigint)) AS s WHERE t."id" = s.c1 AND pg_catalog.record_image_eq(ROW(t."id"), ROW(s.c1))) AND EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t."id" = n.c1::bigint)

-- resync of what is noted
UPDATE "public"."or""ders" AS t SET "Total" = s.c2, "select" = s.c3 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::bigint)) AS s WHERE t."id" = s.c1 AND NOT pg_catalog.record_image_eq(ROW(t."Total", t."select"), ROW(s.c2, s.c3))

-- resync of what is noted
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT s.c1, s.c2, s.c3 FROM (SELECT c1::bigint AS c1, c2::numeric AS c2, c3::text AS c3 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::bigint)) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = s.c1)

-- keep: make the table
CREATE TABLE _tailrace."undo" AS SELECT false AS "_tailrace_was", t."id", t."Total", t."select" FROM "public"."or""ders" AS t WITH NO DATA; CREATE UNIQUE INDEX ON _tailrace."undo" ("id")

-- keep all
INSERT INTO _tailrace."undo" ("_tailrace_was", "id", "Total", "select") SELECT true, t."id", t."Total", t."select" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE t."id" = k."id")

-- keep keys
INSERT INTO _tailrace."undo" ("_tailrace_was", "id", "Total", "select") SELECT t.ctid IS NOT NULL, coalesce(t."id", s.o1), t."Total", t."select" FROM (SELECT s.* FROM (SELECT DISTINCT ON (s.o1) s.* FROM ROWS FROM (pg_catalog.unnest($1::bigint[])) AS s (o1) ORDER BY s.o1) AS s WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k."id" = ANY (ARRAY[s.o1])) OFFSET 0) AS s LEFT JOIN "public"."or""ders" AS t ON t."id" = ANY (ARRAY[s.o1])

-- rewind
DELETE FROM "public"."or""ders" AS t USING pg_temp."state" AS e WHERE t."id" = e."id" AND NOT e."_tailrace_was"

-- rewind
UPDATE "public"."or""ders" AS t SET "id" = e."id", "Total" = e."Total", "select" = e."select" FROM pg_temp."state" AS e WHERE t."id" = e."id" AND e."_tailrace_was" AND NOT pg_catalog.record_image_eq(ROW(t."id", t."Total", t."select"), ROW(e."id", e."Total", e."select"))

-- rewind
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT e."id", e."Total", e."select" FROM pg_temp."state" AS e WHERE e."_tailrace_was" AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."id" = e."id")

-- recall
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT t."id", t."Total", t."select" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM pg_temp."state" AS e WHERE t."id" = e."id")

-- recall
INSERT INTO "public"."or""ders" ("id", "Total", "select") SELECT e."id", e."Total", e."select" FROM pg_temp."state" AS e WHERE e."_tailrace_was"

-- invariant: keys stand more than once
SELECT count(*) FROM (SELECT FROM "public"."or""ders" GROUP BY "id" HAVING count(*) > 1) AS x

