-- create
CREATE TABLE `shop`.`or``ders` (
  `at` varchar(765) NOT NULL,
  `Total` decimal(12,2),
  `id` bigint NOT NULL,
  PRIMARY KEY (`at`, `id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `id`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`at`, `Total`, `id`)

-- fetch
SELECT q.n, t.`Total` FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1

-- upsert
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `id`) VALUES /* list */ ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`)

-- load over what is there
LOAD DATA LOCAL INFILE 'Reader::name' REPLACE INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`at`, `Total`, `id`)

-- delete
DELETE t FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`at`, t.`id`) IN (/* list */)

-- lock
SELECT COUNT(*) FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`at`, t.`id`) IN (/* list */) FOR UPDATE

-- patch
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `id`) VALUES /* list */ ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`)

-- resync
DELETE t FROM `shop`.`or``ders` AS t LEFT JOIN _tailrace.stage AS s ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE s.`at` IS NULL

-- resync
UPDATE `shop`.`or``ders` AS t JOIN _tailrace.stage AS s ON t.`at` = s.`at` AND t.`id` = s.`id` SET t.`Total` = s.`Total` WHERE (NOT t.`Total` <=> s.`Total`)

-- resync
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `id`) SELECT s.`at`, s.`Total`, s.`id` FROM _tailrace.stage AS s LEFT JOIN `shop`.`or``ders` AS t ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE t.`at` IS NULL

-- notes of a resync
CREATE TABLE _tailrace.notes (`at` varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL, `id` bigint NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- note what differs
INSERT INTO _tailrace.notes (`at`, `id`) SELECT s.`at`, s.`id` FROM _tailrace.stage AS s LEFT JOIN `shop`.`or``ders` AS t ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE t.`at` IS NULL OR (NOT t.`Total` <=> s.`Total`)

-- note what differs
INSERT INTO _tailrace.notes (`at`, `id`) SELECT t.`at`, t.`id` FROM `shop`.`or``ders` AS t LEFT JOIN _tailrace.stage AS s ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE s.`at` IS NULL

-- resync of what is noted
DELETE t FROM (SELECT DISTINCT `at`, `id` FROM _tailrace.notes) AS n STRAIGHT_JOIN `shop`.`or``ders` AS t ON t.`at` = n.`at` AND t.`id` = n.`id` LEFT JOIN _tailrace.stage AS s ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE s.`at` IS NULL

-- resync of what is noted
UPDATE (SELECT DISTINCT `at`, `id` FROM _tailrace.notes) AS n STRAIGHT_JOIN `shop`.`or``ders` AS t ON t.`at` = n.`at` AND t.`id` = n.`id` JOIN _tailrace.stage AS s ON t.`at` = s.`at` AND t.`id` = s.`id` SET t.`Total` = s.`Total` WHERE (NOT t.`Total` <=> s.`Total`)

-- resync of what is noted
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `id`) SELECT s.`at`, s.`Total`, s.`id` FROM (SELECT DISTINCT `at`, `id` FROM _tailrace.notes) AS n STRAIGHT_JOIN _tailrace.stage AS s ON s.`at` = n.`at` AND s.`id` = n.`id` LEFT JOIN `shop`.`or``ders` AS t ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE t.`at` IS NULL

-- keep
CREATE TABLE IF NOT EXISTS _tailrace.`undo_7_or``ders` (
  k0 varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  k1 bigint NOT NULL,
  was tinyint NOT NULL,
  c0 decimal(12,2) NULL,
  PRIMARY KEY (k0, k1)
) ENGINE = InnoDB

-- keep all
INSERT INTO _tailrace.`undo_7_or``ders` (k0, k1, was, c0) SELECT t.`at`, t.`id`, 1, t.`Total` FROM `shop`.`or``ders` AS t ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep rows
INSERT INTO _tailrace.`undo_7_or``ders` (k0, k1, was, c0) SELECT t.`at`, t.`id`, 1, t.`Total` FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`at`, t.`id`) IN (/* list */) ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep none
INSERT INTO _tailrace.`undo_7_or``ders` (k0, k1, was) VALUES /* list */ ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- remove
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 WHERE q.was = 0

-- remove whole
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1

-- restore
INSERT INTO `shop`.`or``ders` (`at`, `id`, `Total`) SELECT q.k0, q.k1, q.c0 FROM _tailrace.`undo_7_or``ders` AS q WHERE q.was = 1 ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`)

-- done
CREATE TEMPORARY TABLE _tailrace.tailrace_done (k0 varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL, k1 bigint NOT NULL, PRIMARY KEY (k0, k1)) ENGINE = InnoDB

-- add done
INSERT INTO _tailrace.tailrace_done (k0, k1) SELECT q.k0, q.k1 FROM _tailrace.`undo_7_or``ders` AS q ON DUPLICATE KEY UPDATE _tailrace.tailrace_done.k0 = _tailrace.tailrace_done.k0

-- remove the rest
DELETE t FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 AND d.k1 = q.k1 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 WHERE q.was = 0 AND d.k0 IS NULL

-- restore the rest
INSERT INTO `shop`.`or``ders` (`at`, `id`) SELECT q.k0, q.k1 FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 AND d.k1 = q.k1 WHERE q.was = 1 AND d.k0 IS NULL ON DUPLICATE KEY UPDATE `Total` = DEFAULT(`shop`.`or``ders`.`Total`)

-- note
INSERT INTO _tailrace.tailrace_notes (k0, k1, was, c0, c1, c2) SELECT q.k0, q.k1, t.`at` IS NOT NULL, t.`at`, t.`Total`, t.`id` FROM (SELECT k0 AS k0, k1 AS k1 FROM _tailrace.`undo_7_or``ders`) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 ON DUPLICATE KEY UPDATE _tailrace.tailrace_notes.was = _tailrace.tailrace_notes.was

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `at` varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `Total` decimal(12,2),
  `id` bigint NOT NULL,
  PRIMARY KEY (`at`, `id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: keys stand more than once
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` GROUP BY `at`, `id` HAVING COUNT(*) > 1) AS x

