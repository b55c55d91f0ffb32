-- create
CREATE TABLE "public"."or""ders" (
  "at" text NOT NULL,
  "Total" numeric,
  "select" text,
  "id" bigint NOT NULL,
  "__START_AT" timestamp with time zone NOT NULL,
  "__END_AT" timestamp with time zone
) WITH (fillfactor = 80)

-- copy binary
COPY "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT") FROM STDIN (FORMAT binary)

-- copy text
COPY "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT") FROM STDIN

-- truncate
TRUNCATE "public"."or""ders"

-- row upsert
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id") VALUES ($1::text, $2::numeric, $3::text, $4::bigint) ON CONFLICT ("at", "id") DO UPDATE SET "Total" = excluded."Total", "select" = excluded."select"

-- add key
ALTER TABLE "public"."or""ders" ADD PRIMARY KEY ("at", "id", "__START_AT")

-- stage
CREATE TEMPORARY TABLE pg_temp."tailrace_stage_1" (k integer, n integer, x boolean, lo timestamptz, lov timestamptz, nlo timestamptz, nlov timestamptz, a bytea, o1 text, o2 bigint, c1 text, c2 numeric, c3 text, c4 bigint) ON COMMIT DELETE ROWS

-- copy into stage, gaps false
COPY pg_temp."tailrace_stage_1" (x, lo, c1, c2, c3, c4) FROM STDIN (FORMAT binary)

-- copy into stage, gaps true
COPY pg_temp."tailrace_stage_1" (x, lo, a, o1, o2, c1, c2, c3, c4) FROM STDIN (FORMAT binary)

-- copy several into stage
COPY pg_temp."tailrace_stage_1" (k, n, x, lo, lov, nlo, nlov, a, o1, o2, c1, c2, c3, c4) FROM STDIN (FORMAT binary)

-- row step
WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same, v.same_free FROM (SELECT $1::boolean AS x, $2::timestamptz AS lo, $3::text AS c1, $4::numeric AS c2, $5::text AS c3, $6::bigint AS c4) AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)) AS same, pg_catalog.record_image_eq(ROW(t."select"), ROW(s.c3)) AS same_free FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true),
j AS MATERIALIZED (SELECT f.*, coalesce(f.en, f.st) AS b, CASE WHEN f.x THEN NOT (f.tid IS NOT NULL AND f.en IS NULL) ELSE f.tid IS NOT NULL AND f.en IS NULL AND f.same END AS void FROM f),
ended AS (UPDATE "public"."or""ders" AS t SET "__END_AT" = CASE WHEN j.void THEN NULL ELSE greatest(j.lo, j.b + interval '1 microsecond') END, "select" = CASE WHEN j.void AND NOT j.x THEN j.c3 ELSE t."select" END FROM j WHERE t.ctid = j.tid AND j.en IS NULL AND (NOT j.void OR NOT j.x AND NOT j.same_free))
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT")
SELECT j.c1, j.c2, j.c3, j.c4, greatest(j.lo, j.b + interval '1 microsecond'), NULL::timestamptz FROM j WHERE NOT j.x AND NOT (j.void)

-- fill steps
UPDATE pg_temp."tailrace_stage_1" AS s SET c2 = CASE WHEN pg_catalog.get_bit(s.a, 1) = 1 THEN v.c2 ELSE s.c2 END, c3 = CASE WHEN pg_catalog.get_bit(s.a, 2) = 1 THEN v.c3 ELSE s.c3 END FROM (SELECT s.ctid AS place, v.* FROM pg_temp."tailrace_stage_1" AS s CROSS JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, t."Total" AS c2, t."select" AS c3 FROM "public"."or""ders" AS t WHERE t."at" = s.o1 AND t."id" = s.o2 ORDER BY t."__START_AT" DESC LIMIT 1) AS v WHERE s.a IS NOT NULL AND v.en IS NULL) AS v WHERE s.ctid = v.place

-- single steps
WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same, v.same_free FROM pg_temp."tailrace_stage_1" AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)) AS same, pg_catalog.record_image_eq(ROW(t."select"), ROW(s.c3)) AS same_free FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true),
j AS MATERIALIZED (SELECT f.*, coalesce(f.en, f.st) AS b, CASE WHEN f.x THEN NOT (f.tid IS NOT NULL AND f.en IS NULL) ELSE f.tid IS NOT NULL AND f.en IS NULL AND f.same END AS void FROM f),
ended AS (UPDATE "public"."or""ders" AS t SET "__END_AT" = CASE WHEN j.void THEN NULL ELSE greatest(j.lo, j.b + interval '1 microsecond') END, "select" = CASE WHEN j.void AND NOT j.x THEN j.c3 ELSE t."select" END FROM j WHERE t.ctid = j.tid AND j.en IS NULL AND (NOT j.void OR NOT j.x AND NOT j.same_free))
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT")
SELECT j.c1, j.c2, j.c3, j.c4, greatest(j.lo, j.b + interval '1 microsecond'), NULL::timestamptz FROM j WHERE NOT j.x AND NOT (j.void)

-- several steps
WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same, v.same_free FROM pg_temp."tailrace_stage_1" AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)) AS same, pg_catalog.record_image_eq(ROW(t."select"), ROW(s.c3)) AS same_free FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 AND s.n = 1 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true),
w AS (SELECT f.*, coalesce(f.en, f.st) AS newest, CASE WHEN f.x THEN NOT (f.tid IS NOT NULL AND f.en IS NULL) ELSE f.tid IS NOT NULL AND f.en IS NULL AND f.same END AS nothing FROM f),
j AS MATERIALIZED (SELECT w.*, first_value(w.newest) OVER key AS b, first_value(w.nothing) OVER key AS void
  FROM w WINDOW key AS (PARTITION BY w.k ORDER BY w.n)),
ended AS (UPDATE "public"."or""ders" AS t SET "__END_AT" = CASE WHEN j.void THEN CASE WHEN j.nlo IS NULL THEN NULL WHEN j.void THEN greatest(j.nlov, j.b + j.n * interval '1 microsecond') ELSE greatest(j.nlo, j.b + (j.n + 1) * interval '1 microsecond') END ELSE CASE WHEN j.void THEN greatest(j.lov, j.b + (j.n - 1) * interval '1 microsecond') ELSE greatest(j.lo, j.b + j.n * interval '1 microsecond') END END, "select" = CASE WHEN j.void AND NOT j.x THEN j.c3 ELSE t."select" END FROM j WHERE j.n = 1 AND t.ctid = j.tid AND j.en IS NULL AND (NOT j.void OR j.nlo IS NOT NULL OR NOT j.x AND NOT j.same_free))
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT")
SELECT j.c1, j.c2, j.c3, j.c4, CASE WHEN j.void THEN greatest(j.lov, j.b + (j.n - 1) * interval '1 microsecond') ELSE greatest(j.lo, j.b + j.n * interval '1 microsecond') END, CASE WHEN j.nlo IS NULL THEN NULL WHEN j.void THEN greatest(j.nlov, j.b + j.n * interval '1 microsecond') ELSE greatest(j.nlo, j.b + (j.n + 1) * interval '1 microsecond') END FROM j WHERE NOT j.x AND NOT (j.n = 1 AND j.void)

-- truncate beside steps
UPDATE "public"."or""ders" AS t SET "__END_AT" = greatest($1::timestamptz, t."__START_AT" + interval '1 microsecond') WHERE t."__END_AT" IS NULL AND NOT EXISTS (SELECT FROM pg_temp."tailrace_stage_1" AS s WHERE t."at" = s.c1 AND t."id" = s.c4)

-- truncate
UPDATE "public"."or""ders" AS t SET "__END_AT" = greatest($1::timestamptz, t."__START_AT" + interval '1 microsecond') WHERE t."__END_AT" IS NULL

-- record
CREATE TEMPORARY TABLE pg_temp.tailrace_before_0 (st timestamptz, en timestamptz, c1 text, c2 numeric, c3 text, c4 bigint, PRIMARY KEY (c1, c4)) ON COMMIT DROP

-- remember
INSERT INTO pg_temp.tailrace_before_0 (st, en, c1, c2, c3, c4) SELECT v.st, v.en, s.c1, v.c2, v.c3, s.c4 FROM pg_temp."tailrace_stage_1" AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, t."Total" AS c2, t."select" AS c3 FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true ON CONFLICT DO NOTHING

-- remember open
INSERT INTO pg_temp.tailrace_before_0 (st, en, c1, c2, c3, c4) SELECT t."__START_AT", t."__END_AT", t."at", t."Total", t."select", t."id" FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL ON CONFLICT DO NOTHING

-- undo, forget
DELETE FROM "public"."or""ders" AS t USING pg_temp.tailrace_before_0 AS r, pg_temp."tailrace_stage_1" AS s WHERE t."at" = ANY (ARRAY[s.c1]) AND t."id" = s.c4 AND r.c1 = ANY (ARRAY[s.c1]) AND r.c4 = s.c4 AND (r.st IS NULL OR t."__START_AT" > r.st)

-- undo, restore
UPDATE "public"."or""ders" AS t SET "__END_AT" = r.en, "Total" = r.c2, "select" = r.c3 FROM pg_temp.tailrace_before_0 AS r, pg_temp."tailrace_stage_1" AS s WHERE t."at" = ANY (ARRAY[s.c1]) AND t."id" = s.c4 AND r.c1 = ANY (ARRAY[s.c1]) AND r.c4 = s.c4 AND t."__START_AT" = r.st

-- undo all, forget
DELETE FROM "public"."or""ders" AS t USING pg_temp.tailrace_before_0 AS r WHERE t."at" = ANY (ARRAY[r.c1]) AND t."id" = r.c4 AND (r.st IS NULL OR t."__START_AT" > r.st)

-- undo all, restore
UPDATE "public"."or""ders" AS t SET "__END_AT" = r.en, "Total" = r.c2, "select" = r.c3 FROM pg_temp.tailrace_before_0 AS r WHERE t."at" = ANY (ARRAY[r.c1]) AND t."id" = r.c4 AND t."__START_AT" = r.st

-- resync
SELECT count(*) FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)))

-- resync
WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same, v.same_free FROM (SELECT false AS x, '2026-01-02 03:04:05+00'::timestamptz AS lo, s.* FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."Total", t."select"), ROW(s.c2, s.c3)))
UNION ALL SELECT true, '2026-01-02 03:04:05+00'::timestamptz, t."at"::text, NULL::numeric, NULL::text, t."id"::bigint FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c4)) AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)) AS same, pg_catalog.record_image_eq(ROW(t."select"), ROW(s.c3)) AS same_free FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true),
j AS MATERIALIZED (SELECT f.*, coalesce(f.en, f.st) AS b, CASE WHEN f.x THEN NOT (f.tid IS NOT NULL AND f.en IS NULL) ELSE f.tid IS NOT NULL AND f.en IS NULL AND f.same END AS void FROM f),
ended AS (UPDATE "public"."or""ders" AS t SET "__END_AT" = CASE WHEN j.void THEN NULL ELSE greatest(j.lo, j.b + interval '1 microsecond') END, "select" = CASE WHEN j.void AND NOT j.x THEN j.c3 ELSE t."select" END FROM j WHERE t.ctid = j.tid AND j.en IS NULL AND (NOT j.void OR NOT j.x AND NOT j.same_free))
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT")
SELECT j.c1, j.c2, j.c3, j.c4, greatest(j.lo, j.b + interval '1 microsecond'), NULL::timestamptz FROM j WHERE NOT j.x AND NOT (j.void)

-- repair
CREATE TEMPORARY TABLE tailrace_gone (c1 text, c4 bigint) ON COMMIT DROP

-- repair
SELECT count(*) FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND (EXISTS (SELECT FROM pg_temp.tailrace_gone AS s WHERE t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."at", t."id"), ROW(s.c1, s.c4))) OR EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c4 AND NOT pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2))))

-- repair
WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same, v.same_free FROM (SELECT false AS x, '2026-01-02 03:04:05+00'::timestamptz AS lo, s.* FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."Total", t."select"), ROW(s.c2, s.c3)))
UNION ALL SELECT true, '2026-01-02 03:04:05+00'::timestamptz, t."at"::text, NULL::numeric, NULL::text, t."id"::bigint FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND EXISTS (SELECT FROM pg_temp.tailrace_gone AS s WHERE t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."at", t."id"), ROW(s.c1, s.c4)))) AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)) AS same, pg_catalog.record_image_eq(ROW(t."select"), ROW(s.c3)) AS same_free FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true),
j AS MATERIALIZED (SELECT f.*, coalesce(f.en, f.st) AS b, CASE WHEN f.x THEN NOT (f.tid IS NOT NULL AND f.en IS NULL) ELSE f.tid IS NOT NULL AND f.en IS NULL AND f.same END AS void FROM f),
ended AS (UPDATE "public"."or""ders" AS t SET "__END_AT" = CASE WHEN j.void THEN NULL ELSE greatest(j.lo, j.b + interval '1 microsecond') END, "select" = CASE WHEN j.void AND NOT j.x THEN j.c3 ELSE t."select" END FROM j WHERE t.ctid = j.tid AND j.en IS NULL AND (NOT j.void OR NOT j.x AND NOT j.same_free))
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT")
SELECT j.c1, j.c2, j.c3, j.c4, greatest(j.lo, j.b + interval '1 microsecond'), NULL::timestamptz FROM j WHERE NOT j.x AND NOT (j.void)

-- note what differs
INSERT INTO _tailrace."notes" (c1, c4) SELECT s.c1, s.c4 FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."at", t."Total", t."select", t."id"), ROW(s.c1, s.c2, s.c3, s.c4)))

-- note what differs
INSERT INTO _tailrace."notes" (c1, c4) SELECT t."at", t."id" FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t) AS s WHERE t."at" = s.c1 AND t."id" = s.c4)

-- resync of what is noted
SELECT count(*) FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t."at" = n.c1::text AND t."id" = n.c4::bigint) AND NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::text AND t.c4 = n.c4::bigint)) AS s WHERE t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)))

-- resync of what is noted
WITH f AS (SELECT s.*, v.tid, v.st, v.en, v.same, v.same_free FROM (SELECT false AS x, '2026-01-02 03:04:05+00'::timestamptz AS lo, s.* FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::text AND t.c4 = n.c4::bigint)) AS s WHERE NOT EXISTS (SELECT FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t."at" = n.c1::text AND t."id" = n.c4::bigint) AND t."at" = s.c1 AND t."id" = s.c4 AND pg_catalog.record_image_eq(ROW(t."Total", t."select"), ROW(s.c2, s.c3)))
UNION ALL SELECT true, '2026-01-02 03:04:05+00'::timestamptz, t."at"::text, NULL::numeric, NULL::text, t."id"::bigint FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL AND EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t."at" = n.c1::text AND t."id" = n.c4::bigint) AND NOT EXISTS (SELECT FROM (SELECT c1::text AS c1, c2::numeric AS c2, c3::text AS c3, c4::bigint AS c4 FROM _tailrace."stage" AS t WHERE EXISTS (SELECT FROM _tailrace."notes" AS n WHERE t.c1 = n.c1::text AND t.c4 = n.c4::bigint)) AS s WHERE t."at" = s.c1 AND t."id" = s.c4)) AS s LEFT JOIN LATERAL (SELECT t.ctid AS tid, t."__START_AT" AS st, t."__END_AT" AS en, pg_catalog.record_image_eq(ROW(t."Total"), ROW(s.c2)) AS same, pg_catalog.record_image_eq(ROW(t."select"), ROW(s.c3)) AS same_free FROM "public"."or""ders" AS t WHERE t."at" = s.c1 AND t."id" = s.c4 ORDER BY t."__START_AT" DESC LIMIT 1) AS v ON true),
j AS MATERIALIZED (SELECT f.*, coalesce(f.en, f.st) AS b, CASE WHEN f.x THEN NOT (f.tid IS NOT NULL AND f.en IS NULL) ELSE f.tid IS NOT NULL AND f.en IS NULL AND f.same END AS void FROM f),
ended AS (UPDATE "public"."or""ders" AS t SET "__END_AT" = CASE WHEN j.void THEN NULL ELSE greatest(j.lo, j.b + interval '1 microsecond') END, "select" = CASE WHEN j.void AND NOT j.x THEN j.c3 ELSE t."select" END FROM j WHERE t.ctid = j.tid AND j.en IS NULL AND (NOT j.void OR NOT j.x AND NOT j.same_free))
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT")
SELECT j.c1, j.c2, j.c3, j.c4, greatest(j.lo, j.b + interval '1 microsecond'), NULL::timestamptz FROM j WHERE NOT j.x AND NOT (j.void)

-- keep: make the table
CREATE TABLE _tailrace."undo" AS SELECT false AS "_tailrace_was", t."at", t."Total", t."select", t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WITH NO DATA; CREATE UNIQUE INDEX ON _tailrace."undo" ("at", "id")

-- keep all
INSERT INTO _tailrace."undo" ("_tailrace_was", "at", "Total", "select", "id", "__START_AT", "__END_AT") SELECT true, t."at", t."Total", t."select", t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WHERE t."__END_AT" IS NULL ON CONFLICT DO NOTHING

-- keep keys
INSERT INTO _tailrace."undo" ("_tailrace_was", "at", "Total", "select", "id", "__START_AT", "__END_AT") SELECT t.ctid IS NOT NULL, coalesce(t."at", s.o1), t."Total", t."select", coalesce(t."id", s.o2), t."__START_AT", t."__END_AT" FROM (SELECT s.* FROM (SELECT DISTINCT ON (s.o1, s.o2) s.* FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::bigint[])) AS s (o1, o2) ORDER BY s.o1, s.o2) AS s WHERE NOT EXISTS (SELECT FROM _tailrace."undo" AS k WHERE k."at" = ANY (ARRAY[s.o1]) AND k."id" = s.o2) OFFSET 0) AS s LEFT JOIN LATERAL (SELECT t.ctid, t."at", t."Total", t."select", t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WHERE t."at" = s.o1 AND t."id" = s.o2 ORDER BY t."__START_AT" DESC LIMIT 1) AS t ON true

-- rewind
DELETE FROM "public"."or""ders" AS t USING pg_temp."state" AS e WHERE t."at" = e."at" AND t."id" = e."id" AND (NOT e."_tailrace_was" OR t."__START_AT" >= e."__START_AT")

-- rewind
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT") SELECT e."at", e."Total", e."select", e."id", e."__START_AT", e."__END_AT" FROM pg_temp."state" AS e WHERE e."_tailrace_was"

-- recall
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT") SELECT t."at", t."Total", t."select", t."id", t."__START_AT", t."__END_AT" FROM "public"."or""ders" AS t WHERE NOT EXISTS (SELECT FROM pg_temp."state" AS e WHERE t."at" = e."at" AND t."id" = e."id" AND (NOT e."_tailrace_was" OR t."__START_AT" >= e."__START_AT"))

-- recall
INSERT INTO "public"."or""ders" ("at", "Total", "select", "id", "__START_AT", "__END_AT") SELECT e."at", e."Total", e."select", e."id", e."__START_AT", e."__END_AT" FROM pg_temp."state" AS e WHERE e."_tailrace_was"

-- invariant: versions end before or at their start
SELECT count(*) FROM "public"."or""ders" WHERE "__END_AT" <= "__START_AT"

-- invariant: keys have more than one open version
SELECT count(*) FROM (SELECT FROM "public"."or""ders" WHERE "__END_AT" IS NULL GROUP BY "at", "id" HAVING count(*) > 1) AS x

-- invariant: versions overlap the next version of their key
SELECT count(*) FROM (SELECT "__END_AT" AS e, lead("__START_AT") OVER (PARTITION BY "at", "id" ORDER BY "__START_AT", "__END_AT" NULLS LAST) AS next FROM "public"."or""ders") AS x WHERE next < e OR e IS NULL AND next IS NOT NULL

