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

