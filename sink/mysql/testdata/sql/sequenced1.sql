-- create
CREATE TABLE `shop`.`or``ders` (
  `id` bigint NOT NULL,
  `Total` decimal(12,2),
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`id`, `Total`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`id`, `Total`)

-- fetch
SELECT q.n, t.`Total` FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0

-- upsert
INSERT INTO `shop`.`or``ders` (`id`, `Total`) VALUES /* list */ ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`)

-- load over what is there
LOAD DATA LOCAL INFILE 'Reader::name' REPLACE INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`id`, `Total`)

-- delete
DELETE t FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE t.`id` IN (/* list */)

-- lock
SELECT COUNT(*) FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE t.`id` IN (/* list */) FOR UPDATE

-- patch
INSERT INTO `shop`.`or``ders` (`id`, `Total`) VALUES /* list */ ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`)

-- create records
CREATE TABLE _tailrace.`records_706e5106f7bb2268_or``ders` (
  `key` varbinary(1500) NOT NULL,
  seq varbinary(1000) NOT NULL,
  at longblob NOT NULL,
  body longblob NOT NULL,
  tombstone tinyint(1) NOT NULL,
  time bigint NOT NULL,
  KEY identity (`key`, seq, at(500))
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- look up
SELECT q.n, r.seq, r.at, r.body, r.tombstone, r.time FROM (SELECT 0 AS n, x'01' AS k UNION ALL SELECT 1, x'03') AS q STRAIGHT_JOIN _tailrace.`records_706e5106f7bb2268_or``ders` AS r FORCE INDEX (identity) ON r.`key` = q.k

-- below
(seq < x'00ff' OR seq = x'00ff' AND at <= x'')

-- keep
CREATE TABLE IF NOT EXISTS _tailrace.`undo_7_or``ders` (
  k0 bigint NOT NULL,
  was tinyint NOT NULL,
  c0 decimal(12,2) NULL,
  PRIMARY KEY (k0)
) ENGINE = InnoDB

-- keep all
INSERT INTO _tailrace.`undo_7_or``ders` (k0, was, c0) SELECT t.`id`, 1, t.`Total` FROM `shop`.`or``ders` AS t ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep rows
INSERT INTO _tailrace.`undo_7_or``ders` (k0, was, c0) SELECT t.`id`, 1, t.`Total` FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE t.`id` IN (/* list */) ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep none
INSERT INTO _tailrace.`undo_7_or``ders` (k0, was) VALUES /* list */ ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- remove
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 WHERE q.was = 0

-- remove whole
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0

-- restore
INSERT INTO `shop`.`or``ders` (`id`, `Total`) SELECT q.k0, q.c0 FROM _tailrace.`undo_7_or``ders` AS q WHERE q.was = 1 ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`)

-- done
CREATE TEMPORARY TABLE _tailrace.tailrace_done (k0 bigint NOT NULL, PRIMARY KEY (k0)) ENGINE = InnoDB

-- add done
INSERT INTO _tailrace.tailrace_done (k0) SELECT q.k0 FROM _tailrace.`undo_7_or``ders` AS q ON DUPLICATE KEY UPDATE _tailrace.tailrace_done.k0 = _tailrace.tailrace_done.k0

-- remove the rest
DELETE t FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 WHERE q.was = 0 AND d.k0 IS NULL

-- restore the rest
INSERT INTO `shop`.`or``ders` (`id`) SELECT q.k0 FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 WHERE q.was = 1 AND d.k0 IS NULL ON DUPLICATE KEY UPDATE `Total` = DEFAULT(`shop`.`or``ders`.`Total`)

-- note
INSERT INTO _tailrace.tailrace_notes (k0, was, c0, c1) SELECT q.k0, t.`id` IS NOT NULL, t.`id`, t.`Total` FROM (SELECT k0 AS k0 FROM _tailrace.`undo_7_or``ders`) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 ON DUPLICATE KEY UPDATE _tailrace.tailrace_notes.was = _tailrace.tailrace_notes.was

-- records
CREATE TABLE IF NOT EXISTS _tailrace.`undo_9_or``ders` (
  `key` varbinary(1500) NOT NULL,
  seq varbinary(1000) NOT NULL,
  place binary(32) NOT NULL,
  was tinyint NOT NULL,
  at longblob NOT NULL,
  body longblob,
  tombstone tinyint(1),
  time bigint,
  PRIMARY KEY (`key`, seq, place)
) ENGINE = InnoDB

-- records
INSERT INTO _tailrace.`undo_9_or``ders` (`key`, seq, place, at, was, body, tombstone, time) SELECT q.k, q.s, UNHEX(SHA2(q.a, 256)), q.a, r.body IS NOT NULL, r.body, r.tombstone, r.time FROM (/* list */) AS q LEFT JOIN _tailrace.`records_706e5106f7bb2268_or``ders` AS r FORCE INDEX (identity) ON r.`key` = q.k AND r.seq = q.s AND r.at = q.a ON DUPLICATE KEY UPDATE _tailrace.`undo_9_or``ders`.was = _tailrace.`undo_9_or``ders`.was

-- records
INSERT INTO _tailrace.`undo_9_or``ders` (`key`, seq, place, at, was, body, tombstone, time) SELECT `key`, seq, UNHEX(SHA2(at, 256)), at, 1, body, tombstone, time FROM _tailrace.`records_706e5106f7bb2268_or``ders` WHERE time < 1 ON DUPLICATE KEY UPDATE _tailrace.`undo_9_or``ders`.was = _tailrace.`undo_9_or``ders`.was

-- records
CREATE TEMPORARY TABLE _tailrace.tailrace_done (`key` varbinary(1500) NOT NULL, seq varbinary(1000) NOT NULL, place binary(32) NOT NULL, PRIMARY KEY (`key`, seq, place)) ENGINE = InnoDB

-- records
INSERT INTO _tailrace.tailrace_done (`key`, seq, place) SELECT q.`key`, q.seq, q.place FROM _tailrace.`undo_9_or``ders` AS q ON DUPLICATE KEY UPDATE _tailrace.tailrace_done.`key` = _tailrace.tailrace_done.`key`

-- records
DELETE r FROM _tailrace.`undo_9_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.`key` = q.`key` AND d.seq = q.seq AND d.place = q.place STRAIGHT_JOIN _tailrace.`records_706e5106f7bb2268_or``ders` AS r FORCE INDEX (identity) ON r.`key` = q.`key` AND r.seq = q.seq AND r.at = q.at WHERE d.`key` IS NULL

-- records
INSERT INTO _tailrace.`records_706e5106f7bb2268_or``ders` (`key`, seq, at, body, tombstone, time) SELECT q.`key`, q.seq, q.at, q.body, q.tombstone, q.time FROM _tailrace.`undo_9_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.`key` = q.`key` AND d.seq = q.seq AND d.place = q.place WHERE q.was = 1 AND d.`key` IS NULL

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `id` bigint NOT NULL,
  `Total` decimal(12,2),
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: keys stand more than once
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` GROUP BY `id` HAVING COUNT(*) > 1) AS x

