-- Every clause of a change feed.
CREATE OR REFRESH STREAMING TABLE shop.a (
  id BIGINT NOT NULL COMMENT 'the key',
  name STRING,
  CONSTRAINT named EXPECT (name IS NOT NULL),
  CONSTRAINT `known operation` EXPECT (op IN ("I", 'U', 'it''s', 'x\'y')) ON VIOLATION DROP ROW,
  CONSTRAINT whole EXPECT (id > 0) ON VIOLATION FAIL UPDATE,
  PRIMARY KEY (id)
)
USING DELTA
CLUSTER BY (id)
LOCATION '/mnt/a'
COMMENT 'everything'
TBLPROPERTIES (
  'tailrace.change_feed' = 'true', 'tailrace.change_feed_retention' = '24h', 'tailrace.sequence_scope' = 'global',
  'tailrace.late_beyond_retention' = 'quarantine', 'tailrace.on_bad_event' = 'fail', 'tailrace.history_start' = '-infinity',
  'tailrace.skip_change_commits' = 'update, delete', 'tailrace.tombstone_retention' = '90m', 'delta.enableChangeDataFeed' = true
);
CREATE FLOW first AS AUTO CDC ONCE INTO shop.a
FROM stream(shop.seed) KEYS (id, `the region`) SEQUENCE BY n COLUMNS (id, `the region`, name) IGNORE NULL UPDATES ON (name);
CREATE FLOW second COMMENT 'live' AS AUTO CDC INTO shop.a
FROM STREAM shop.`feed.1` KEYS (id, `the region`) SEQUENCE BY n COLUMNS (id, `the region`, name) IGNORE NULL UPDATES ON * EXCEPT (name);

CREATE STREAMING TABLE b FLOW AUTO CDC FROM stream(s.f) KEYS (id) IGNORE NULL UPDATES SEQUENCE BY n STORED AS SCD TYPE 2 TRACK HISTORY ON (x, y);
CREATE STREAMING TABLE c FLOW AUTO CDC FROM stream(s.f) KEYS (id) COLUMNS TO UPDATE changed SEQUENCE BY n;
CREATE STREAMING TABLE d SCHEDULE EVERY 1 HOUR FLOW AUTO CDC FROM stream(s.f) KEYS (id) SEQUENCE BY at SYSTEM SEQUENCE BY known STORED AS BITEMPORAL;
CREATE PRIVATE STREAMING TABLE e FLOW AUTO CDC FROM s.f KEYS (id) SEQUENCE BY n TRACK HISTORY ON * STORED AS SCD TYPE 2;
CREATE STREAMING TABLE nobody;
