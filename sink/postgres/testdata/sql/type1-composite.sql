-- create
CREATE TABLE "public"."or""ders" (
  "at" text NOT NULL,
  "Total" numeric,
  "id" bigint NOT NULL
) WITH (fillfactor = 90)

-- copy binary
COPY "public"."or""ders" ("at", "Total", "id") FROM STDIN (FORMAT binary)

-- copy text
COPY "public"."or""ders" ("at", "Total", "id") FROM STDIN

-- truncate
TRUNCATE "public"."or""ders"

-- row upsert
INSERT INTO "public"."or""ders" ("at", "Total", "id") VALUES ($1::text, $2::numeric, $3::bigint) ON CONFLICT ("at", "id") DO UPDATE SET "Total" = excluded."Total"

-- add key
ALTER TABLE "public"."or""ders" ADD PRIMARY KEY ("at", "id")

-- stage
CREATE TEMPORARY TABLE pg_temp."tailrace_stage_1" (g smallint, a bytea, o1 text, o2 bigint, c1 text, c2 numeric, c3 bigint) ON COMMIT DELETE ROWS

-- copy into stage, gaps false
COPY pg_temp."tailrace_stage_1" (g, c1, c2, c3) FROM STDIN (FORMAT binary)

-- copy into stage, gaps true
COPY pg_temp."tailrace_stage_1" (g, a, o1, o2, c1, c2, c3) FROM STDIN (FORMAT binary)

-- row patch
WITH u AS (UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit($4::bytea, 1) = 1 THEN t."Total" ELSE $2::numeric END WHERE t."at" = $1::text AND t."id" = $3::bigint RETURNING 1) SELECT 1 / (SELECT count(*) FROM u)

-- row patch, restored
UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit($4::bytea, 1) = 1 THEN t."Total" ELSE $2::numeric END WHERE t."at" = $1::text AND t."id" = $3::bigint

-- row delete
DELETE FROM "public"."or""ders" AS t WHERE t."at" = $1::text AND t."id" = $2::bigint

-- keys delete
DELETE FROM "public"."or""ders" AS t USING ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::bigint[])) AS s (o1, o2) WHERE t."at" = ANY (ARRAY[s.o1]) AND t."id" = s.o2

-- fill moves
UPDATE pg_temp."tailrace_stage_1" AS s SET c2 = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN t."Total" ELSE s.c2 END FROM "public"."or""ders" AS t WHERE s.g = 1 AND s.a IS NOT NULL AND t."at" = ANY (ARRAY[s.o1]) AND t."id" = s.o2

-- rows that cannot be filled, restored
DELETE FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 1 AND s.a IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."at" = s.o1 AND t."id" = s.o2)

-- insert moves
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT s.c1, s.c2, s.c3 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 1

-- insert staged
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT s.c1, s.c2, s.c3 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 4 ON CONFLICT ("at", "id") DO UPDATE SET "Total" = excluded."Total"

-- upsert staged
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT s.c1, s.c2, s.c3 FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 2 ON CONFLICT ("at", "id") DO UPDATE SET "Total" = excluded."Total"

-- patch staged
UPDATE "public"."or""ders" AS t SET "Total" = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN t."Total" ELSE s.c2 END FROM pg_temp."tailrace_stage_1" AS s WHERE s.g = 3 AND t."at" = ANY (ARRAY[s.c1]) AND t."id" = s.c3

-- delete staged keys
DELETE FROM "public"."or""ders" AS t USING pg_temp."tailrace_stage_1" AS s WHERE t."at" = ANY (ARRAY[s.c1]) AND t."id" = s.c3

-- resync
DELETE FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND pg_catalog.record_image_eq(ROW(t."at", t."id"), ROW(s.c1, s.c3)))

-- resync
UPDATE "public"."or""ders" AS t SET "Total" = s.c2 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND NOT pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2))

-- resync
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT s.c1, s.c2, s.c3 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c3)

-- repair
CREATE TEMPORARY TABLE tailrace_gone (c1 text, c3 bigint) ON COMMIT DROP

-- repair
DELETE FROM "public"."or""ders" AS t USING pg_temp.tailrace_gone AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND pg_catalog.record_image_eq(ROW(t."at", t."id"), ROW(s.c1, s.c3))

-- repair
DELETE FROM "public"."or""ders" AS t USING (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND NOT pg_catalog.record_image_eq(ROW(t."at", t."id"), ROW(s.c1, s.c3))

-- repair
UPDATE "public"."or""ders" AS t SET "Total" = s.c2 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND NOT pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2))

-- repair
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT s.c1, s.c2, s.c3 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c3)

-- note what differs
INSERT INTO _tailrace."notes" (c1, c3) SELECT s.c1, s.c3 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c3 AND pg_catalog.record_image_eq(ROW(t."at", t."Total", t."id"), ROW(s.c1, s.c2, s.c3)))

-- note what differs
INSERT INTO _tailrace."notes" (c1, c3) SELECT t."at", t."id" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c3)

-- resync of what is noted
DELETE FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::text AND t.c3 = n.c3::bigint)) AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND pg_catalog.record_image_eq(ROW(t."at", t."id"), ROW(s.c1, s.c3))) AND EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t."at" = n.c1::text AND t."id" = n.c3::bigint)

-- resync of what is noted
UPDATE "public"."or""ders" AS t SET "Total" = s.c2 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::text AND t.c3 = n.c3::bigint)) AS s WHERE t."at" = s.c1 AND t."id" = s.c3 AND NOT pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2))

-- resync of what is noted
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT s.c1, s.c2, s.c3 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::bigint AS c3 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::text AND t.c3 = n.c3::bigint)) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c3)

-- keep: make the table
CREATE TABLE _tailrace."undo" AS SELECT false AS "_tailrace_was", t."at", t."Total", t."id" FROM "public"."or""ders" AS t WITH NO DATA; CREATE UNIQUE INDEX ON _tailrace."undo" ("at", "id")

-- keep all
INSERT INTO _tailrace."undo" ("_tailrace_was", "at", "Total", "id") SELECT true, t."at", t."Total", t."id" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE t."at" = k."at" AND t."id" = k."id")

-- keep keys
INSERT INTO _tailrace."undo" ("_tailrace_was", "at", "Total", "id") SELECT t.ctid IS NOT NULL, coalesce(t."at", s.o1), t."Total", coalesce(t."id", s.o2) FROM (SELECT s.* FROM (SELECT DISTINCT ON (s.o1, s.o2) s.* FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::bigint[])) AS s (o1, o2) ORDER BY s.o1, s.o2) AS s WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k."at" = ANY (ARRAY[s.o1]) AND k."id" = s.o2) OFFSET 0) AS s LEFT JOIN "public"."or""ders" AS t ON t."at" = ANY (ARRAY[s.o1]) AND t."id" = s.o2

-- rewind
DELETE FROM "public"."or""ders" AS t USING pg_temp."state" AS e WHERE t."at" = e."at" AND t."id" = e."id" AND NOT e."_tailrace_was"

-- rewind
UPDATE "public"."or""ders" AS t SET "at" = e."at", "Total" = e."Total", "id" = e."id" FROM pg_temp."state" AS e WHERE t."at" = e."at" AND t."id" = e."id" AND e."_tailrace_was" AND NOT pg_catalog.record_image_eq(ROW(t."at", t."Total", t."id"), ROW(e."at", e."Total", e."id"))

-- rewind
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT e."at", e."Total", e."id" FROM pg_temp."state" AS e WHERE e."_tailrace_was" AND NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."at" = e."at" AND t."id" = e."id")

-- recall
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT t."at", t."Total", t."id" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM pg_temp."state" AS e WHERE t."at" = e."at" AND t."id" = e."id")

-- recall
INSERT INTO "public"."or""ders" ("at", "Total", "id") SELECT e."at", e."Total", e."id" FROM pg_temp."state" AS e WHERE e."_tailrace_was"

-- invariant: keys stand more than once
SELECT count(*) FROM (SELECT FROM "public"."or""ders" GROUP BY "at", "id" HAVING count(*) > 1) AS x

