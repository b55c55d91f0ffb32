-- create
CREATE TABLE `shop`.`or``ders` (
  `at` varchar(762) NOT NULL,
  `Total` decimal(12,2),
  `select` longtext,
  `id` bigint NOT NULL,
  `__START_AT` datetime(6) NOT NULL,
  `__END_AT` datetime(6),
  PRIMARY KEY (`at`, `id`, `__START_AT`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `select`, `id`, `__START_AT`, `__END_AT`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`at`, `Total`, `select`, `id`, `__START_AT`, `__END_AT`)

-- fetch
SELECT q.n, t.`__START_AT`, t.`__END_AT`, t.`Total`, t.`select` FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`at` = q.k0 AND m.`id` = q.k1 ORDER BY m.`__START_AT` DESC LIMIT 1)

-- end versions, free false
INSERT INTO `shop`.`or``ders` (`at`, `id`, `__START_AT`, `__END_AT`) VALUES /* list */ ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`)

-- end versions, free true
INSERT INTO `shop`.`or``ders` (`at`, `id`, `__START_AT`, `__END_AT`, `select`) VALUES /* list */ ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`), `select` = VALUES(`select`)

-- truncate
UPDATE `shop`.`or``ders` SET `__END_AT` = GREATEST(TIMESTAMP'2023-11-14 22:13:20.000001', `__START_AT` + INTERVAL 1 MICROSECOND) WHERE `__END_AT` IS NULL

-- record
CREATE TEMPORARY TABLE _tailrace.tailrace_before_0 (
  `at` varchar(762) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `Total` decimal(12,2) NULL,
  `select` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL,
  `id` bigint NOT NULL,
  `__START_AT` datetime(6) NULL,
  `__END_AT` datetime(6) NULL,
  PRIMARY KEY (`at`, `id`)
) ENGINE = InnoDB

-- remember
INSERT INTO _tailrace.tailrace_before_0 (`at`, `Total`, `select`, `id`, `__START_AT`, `__END_AT`) SELECT q.k0, t.`Total`, t.`select`, q.k1, t.`__START_AT`, t.`__END_AT` FROM (/* list */) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`at` = q.k0 AND m.`id` = q.k1 ORDER BY m.`__START_AT` DESC LIMIT 1) ON DUPLICATE KEY UPDATE _tailrace.tailrace_before_0.`__START_AT` = _tailrace.tailrace_before_0.`__START_AT`

-- remember open
INSERT INTO _tailrace.tailrace_before_0 (`at`, `Total`, `select`, `id`, `__START_AT`, `__END_AT`) SELECT `at`, `Total`, `select`, `id`, `__START_AT`, `__END_AT` FROM `shop`.`or``ders` AS t WHERE t.`__END_AT` IS NULL ON DUPLICATE KEY UPDATE _tailrace.tailrace_before_0.`__START_AT` = _tailrace.tailrace_before_0.`__START_AT`

-- forget, whole false
DELETE t FROM (/* list */) AS q STRAIGHT_JOIN _tailrace.tailrace_before_0 AS r ON r.`at` = q.k0 AND r.`id` = q.k1 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = r.`at` AND t.`id` = r.`id` WHERE r.`__START_AT` IS NULL OR t.`__START_AT` > r.`__START_AT`

-- restore, whole false
UPDATE (/* list */) AS q STRAIGHT_JOIN _tailrace.tailrace_before_0 AS r ON r.`at` = q.k0 AND r.`id` = q.k1 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = r.`at` AND t.`id` = r.`id` AND t.`__START_AT` = r.`__START_AT` SET t.`__END_AT` = r.`__END_AT`, t.`Total` = r.`Total`, t.`select` = r.`select`

-- forget, whole true
DELETE t FROM /* list */_tailrace.tailrace_before_0 AS r STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = r.`at` AND t.`id` = r.`id` WHERE r.`__START_AT` IS NULL OR t.`__START_AT` > r.`__START_AT`

-- restore, whole true
UPDATE /* list */_tailrace.tailrace_before_0 AS r STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = r.`at` AND t.`id` = r.`id` AND t.`__START_AT` = r.`__START_AT` SET t.`__END_AT` = r.`__END_AT`, t.`Total` = r.`Total`, t.`select` = r.`select`

-- notes of a resync
CREATE TABLE _tailrace.notes (`at` varchar(762) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL, `id` bigint NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- note what differs
INSERT INTO _tailrace.notes (`at`, `id`) SELECT s.`at`, s.`id` FROM _tailrace.stage AS s LEFT JOIN `shop`.`or``ders` AS t ON t.`at` = s.`at` AND t.`id` = s.`id` AND t.`__END_AT` IS NULL WHERE t.`at` IS NULL OR (NOT t.`Total` <=> s.`Total` OR NOT CAST(t.`select` AS BINARY) <=> CAST(s.`select` AS BINARY))

-- note what differs
INSERT INTO _tailrace.notes (`at`, `id`) SELECT t.`at`, t.`id` FROM `shop`.`or``ders` AS t LEFT JOIN _tailrace.stage AS s ON t.`at` = s.`at` AND t.`id` = s.`id` WHERE s.`at` IS NULL AND t.`__END_AT` IS NULL

-- keep
CREATE TABLE IF NOT EXISTS _tailrace.`undo_7_or``ders` (
  k0 varchar(762) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  k1 bigint NOT NULL,
  was tinyint NOT NULL,
  s datetime(6) NULL,
  e datetime(6) NULL,
  c0 decimal(12,2) NULL,
  c1 longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL,
  PRIMARY KEY (k0, k1)
) ENGINE = InnoDB

-- keep all
INSERT INTO _tailrace.`undo_7_or``ders` (k0, k1, was, s, e, c0, c1) SELECT t.`at`, t.`id`, 1, t.`__START_AT`, t.`__END_AT`, t.`Total`, t.`select` FROM `shop`.`or``ders` AS t WHERE t.`__END_AT` IS NULL ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep newest
INSERT INTO _tailrace.`undo_7_or``ders` (k0, k1, was, s, e, c0, c1) SELECT q.k0, q.k1, t.`__START_AT` IS NOT NULL, t.`__START_AT`, t.`__END_AT`, t.`Total`, t.`select` FROM (/* list */) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`at` = q.k0 AND m.`id` = q.k1 ORDER BY m.`__START_AT` DESC LIMIT 1) ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- remove
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 WHERE (q.was = 0 OR t.`__START_AT` > q.s)

-- remove whole
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 WHERE (q.was = 0 OR t.`__START_AT` >= q.s)

-- restore
INSERT INTO `shop`.`or``ders` (`at`, `id`, `__START_AT`, `__END_AT`, `Total`, `select`) SELECT q.k0, q.k1, q.s, q.e, q.c0, q.c1 FROM _tailrace.`undo_7_or``ders` AS q WHERE q.was = 1 ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`), `select` = VALUES(`select`), `__END_AT` = VALUES(`__END_AT`)

-- done
CREATE TEMPORARY TABLE _tailrace.tailrace_done (k0 varchar(762) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL, k1 bigint NOT NULL, PRIMARY KEY (k0, k1)) ENGINE = InnoDB

-- add done
INSERT INTO _tailrace.tailrace_done (k0, k1) SELECT q.k0, q.k1 FROM _tailrace.`undo_7_or``ders` AS q ON DUPLICATE KEY UPDATE _tailrace.tailrace_done.k0 = _tailrace.tailrace_done.k0

-- remove the rest
DELETE t FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 AND d.k1 = q.k1 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 WHERE (q.was = 0 OR t.`__START_AT` > q.s) AND d.k0 IS NULL

-- restore the rest
INSERT INTO `shop`.`or``ders` (`at`, `id`, `__START_AT`, `__END_AT`, `Total`) SELECT q.k0, q.k1, q.s, q.e, q.c0 FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 AND d.k1 = q.k1 WHERE q.was = 1 AND d.k0 IS NULL ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`), `select` = DEFAULT(`shop`.`or``ders`.`select`), `__END_AT` = VALUES(`__END_AT`)

-- note
INSERT INTO _tailrace.tailrace_notes (k0, k1, was, c0, c1, c2, c3, s, e) SELECT t.`at`, t.`id`, 1, t.`at`, t.`Total`, t.`select`, t.`id`, t.`__START_AT`, t.`__END_AT` FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 AND (q.was = 0 OR t.`__START_AT` >= q.s) ON DUPLICATE KEY UPDATE _tailrace.tailrace_notes.was = _tailrace.tailrace_notes.was

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `at` varchar(762) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `Total` decimal(12,2),
  `select` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
  `id` bigint NOT NULL,
  PRIMARY KEY (`at`, `id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: versions end before or at their start
SELECT COUNT(*) FROM `shop`.`or``ders` WHERE `__END_AT` IS NOT NULL AND `__END_AT` <= `__START_AT`

-- invariant: keys have more than one open version
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` WHERE `__END_AT` IS NULL GROUP BY `at`, `id` HAVING COUNT(*) > 1) AS x

-- invariant: versions overlap the next version of their key
SELECT COUNT(*) FROM (SELECT `__END_AT` IS NULL AS open, LEAD(1) OVER w AS more, `__END_AT` AS e0, LEAD(`__START_AT`) OVER w AS n0 FROM `shop`.`or``ders` WINDOW w AS (PARTITION BY `at`, `id` ORDER BY `__START_AT`, `__END_AT` IS NULL)) AS x WHERE more = 1 AND (open OR n0 < e0)

