-- Snapshots of tables and queries.
CREATE STREAMING TABLE t1 SCHEDULE EVERY 2 DAYS;
CREATE FLOW f1 AS AUTO CDC INTO t1 FROM SNAPSHOT (
  SELECT userId, city
  FROM main.cdc_tutorial.snapshot
)
WITH VERSION (
  SELECT version
  FROM main.cdc_tutorial.snapshot_version
  WHERE (
    NOT EXISTS (SELECT 1 FROM last_snapshot_version())
    OR version > (SELECT version FROM last_snapshot_version())
  )
)
KEYS (userId)
STORED AS SCD TYPE 2;
CREATE STREAMING TABLE t2 SCHEDULE CRON '0 30 3 ? * 2-6' AT TIME ZONE 'Europe/Berlin' TBLPROPERTIES ('tailrace.max_delete_share' = 1)
FLOW AUTO CDC ONCE FROM SNAPSHOT shop.customers KEYS (id) STORED AS SCD TYPE 2 TRACK HISTORY ON (name);
CREATE STREAMING TABLE t3 SCHEDULE CRON '0 0/15 * * * ?'
FLOW AUTO CDC FROM SNAPSHOT (SELECT * EXCEPT (note) FROM shop.customers) KEYS (id);
CREATE STREAMING TABLE t4
FLOW AUTO CDC FROM SNAPSHOT (
  WITH big AS (SELECT c.id, sum(o.price) AS total FROM main.shop.customers c JOIN shop.`Orders` AS o ON o.id = c.id WHERE o.state <> "gone" GROUP BY c.id)
  SELECT id, `Total`, count(*) AS n FROM big WHERE total >= 1.5 AND id IN (SELECT id FROM a.shop.live WHERE x != 'it''s') GROUP BY id, `Total`
) WITH VERSION (SELECT max(v) FROM shop.loads) KEYS (id);
CREATE STREAMING TABLE t5 (CONSTRAINT named EXPECT (name IS NOT NULL) ON VIOLATION DROP ROW)
FLOW AUTO CDC FROM SNAPSHOT shop.customers KEYS (id);
