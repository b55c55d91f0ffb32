-- create
CREATE TABLE "public"."or""ders" (
  "Total" numeric,
  "select" text
)

-- copy binary
COPY "public"."or""ders" ("Total", "select") FROM STDIN (FORMAT binary)

-- copy text
COPY "public"."or""ders" ("Total", "select") FROM STDIN

-- truncate
TRUNCATE "public"."or""ders"

-- row upsert
INSERT INTO "public"."or""ders" ("Total", "select") VALUES ($1::numeric, $2::text)

-- resync
DELETE FROM "public"."or""ders"

-- resync
INSERT INTO "public"."or""ders" ("Total", "select") SELECT s.c1, s.c2 FROM (SELECT c1::numeric AS c1, c2::text AS c2 FROM _tailrace."stage" AS t) AS s

-- keep: make the table
CREATE TABLE _tailrace."undo" AS SELECT false AS "_tailrace_was", t."Total", t."select" FROM "public"."or""ders" AS t WITH NO DATA

-- keep all
INSERT INTO _tailrace."undo" ("_tailrace_was", "Total", "select") SELECT true, t."Total", t."select" FROM "public"."or""ders" AS t

-- keep a row
INSERT INTO _tailrace."undo" ("_tailrace_was", "Total", "select") VALUES (false, $1::numeric, $2::text)

-- rewind: count
CREATE TEMPORARY TABLE pg_temp.net ON COMMIT DROP AS SELECT (ROW(e."Total", e."select")::text COLLATE "C") AS image, sum(CASE WHEN e."_tailrace_was" THEN 1 ELSE -1 END) AS n FROM pg_temp."state" AS e GROUP BY 1 HAVING sum(CASE WHEN e."_tailrace_was" THEN 1 ELSE -1 END) <> 0

-- rewind: leave
DELETE FROM "public"."or""ders" AS t USING (SELECT t.tableoid AS part, t.ctid AS place, n.n, row_number() OVER (PARTITION BY n.image) AS i FROM "public"."or""ders" AS t JOIN pg_temp.net AS n ON n.image = (ROW(t."Total", t."select")::text COLLATE "C") WHERE n.n < 0) AS d
WHERE t.ctid = d.place AND t.tableoid = d.part AND d.i <= -d.n

-- rewind: come
INSERT INTO "public"."or""ders" ("Total", "select") SELECT d."Total", d."select" FROM (SELECT e.*, n.n AS "_tailrace_n", row_number() OVER (PARTITION BY n.image) AS "_tailrace_i" FROM pg_temp."state" AS e JOIN pg_temp.net AS n ON n.image = (ROW(e."Total", e."select")::text COLLATE "C") WHERE e."_tailrace_was" AND n.n > 0) AS d WHERE "_tailrace_i" <= "_tailrace_n"

-- recall
INSERT INTO "public"."or""ders" ("Total", "select") SELECT d."Total", d."select" FROM (SELECT t.*, n.n AS "_tailrace_n", row_number() OVER (PARTITION BY (ROW(t."Total", t."select")::text COLLATE "C")) AS "_tailrace_i" FROM "public"."or""ders" AS t LEFT JOIN pg_temp.net AS n ON n.image = (ROW(t."Total", t."select")::text COLLATE "C")) AS d WHERE "_tailrace_n" IS NULL OR "_tailrace_i" > -"_tailrace_n"

-- recall
INSERT INTO "public"."or""ders" ("Total", "select") SELECT d."Total", d."select" FROM (SELECT e.*, n.n AS "_tailrace_n", row_number() OVER (PARTITION BY n.image) AS "_tailrace_i" FROM pg_temp."state" AS e JOIN pg_temp.net AS n ON n.image = (ROW(e."Total", e."select")::text COLLATE "C") WHERE e."_tailrace_was" AND n.n > 0) AS d WHERE "_tailrace_i" <= "_tailrace_n"

