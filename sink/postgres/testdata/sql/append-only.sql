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

