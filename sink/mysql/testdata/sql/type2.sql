-- create
CREATE TABLE `shop`.`or``ders` (
  `id` bigint NOT NULL,
  `Total` decimal(12,2),
  `__START_AT` datetime(6) NOT NULL,
  `__END_AT` datetime(6),
  PRIMARY KEY (`id`, `__START_AT`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`id`, `Total`, `__START_AT`, `__END_AT`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`id`, `Total`, `__START_AT`, `__END_AT`)

-- fetch
SELECT q.n, t.`__START_AT`, t.`__END_AT`, t.`Total` FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`id` = q.k0 ORDER BY m.`__START_AT` DESC LIMIT 1)

-- end versions, free false
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`) VALUES /* list */ ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`)

-- truncate
UPDATE `shop`.`or``ders` SET `__END_AT` = GREATEST(TIMESTAMP'2023-11-14 22:13:20.000001', `__START_AT` + INTERVAL 1 MICROSECOND) WHERE `__END_AT` IS NULL

-- record
CREATE TEMPORARY TABLE _tailrace.tailrace_before_0 (
  `id` bigint NOT NULL,
  `Total` decimal(12,2) NULL,
  `__START_AT` datetime(6) NULL,
  `__END_AT` datetime(6) NULL,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB

-- remember
INSERT INTO _tailrace.tailrace_before_0 (`id`, `Total`, `__START_AT`, `__END_AT`) SELECT q.k0, t.`Total`, t.`__START_AT`, t.`__END_AT` FROM (/* list */) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`id` = q.k0 ORDER BY m.`__START_AT` DESC LIMIT 1) ON DUPLICATE KEY UPDATE _tailrace.tailrace_before_0.`__START_AT` = _tailrace.tailrace_before_0.`__START_AT`

-- remember open
INSERT INTO _tailrace.tailrace_before_0 (`id`, `Total`, `__START_AT`, `__END_AT`) SELECT `id`, `Total`, `__START_AT`, `__END_AT` FROM `shop`.`or``ders` AS t WHERE t.`__END_AT` IS NULL ON DUPLICATE KEY UPDATE _tailrace.tailrace_before_0.`__START_AT` = _tailrace.tailrace_before_0.`__START_AT`

-- forget, whole false
DELETE t FROM (/* list */) AS q STRAIGHT_JOIN _tailrace.tailrace_before_0 AS r ON r.`id` = q.k0 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = r.`id` WHERE r.`__START_AT` IS NULL OR t.`__START_AT` > r.`__START_AT`

-- restore, whole false
UPDATE (/* list */) AS q STRAIGHT_JOIN _tailrace.tailrace_before_0 AS r ON r.`id` = q.k0 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = r.`id` AND t.`__START_AT` = r.`__START_AT` SET t.`__END_AT` = r.`__END_AT`, t.`Total` = r.`Total`

-- forget, whole true
DELETE t FROM /* list */_tailrace.tailrace_before_0 AS r STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = r.`id` WHERE r.`__START_AT` IS NULL OR t.`__START_AT` > r.`__START_AT`

-- restore, whole true
UPDATE /* list */_tailrace.tailrace_before_0 AS r STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = r.`id` AND t.`__START_AT` = r.`__START_AT` SET t.`__END_AT` = r.`__END_AT`, t.`Total` = r.`Total`

-- notes of a resync
CREATE TABLE _tailrace.notes (`id` bigint NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- note what differs
INSERT INTO _tailrace.notes (`id`) SELECT s.`id` FROM _tailrace.stage AS s LEFT JOIN `shop`.`or``ders` AS t ON t.`id` = s.`id` AND t.`__END_AT` IS NULL WHERE t.`id` IS NULL OR (NOT t.`Total` <=> s.`Total`)

-- note what differs
INSERT INTO _tailrace.notes (`id`) SELECT t.`id` FROM `shop`.`or``ders` AS t LEFT JOIN _tailrace.stage AS s ON t.`id` = s.`id` WHERE s.`id` IS NULL AND t.`__END_AT` IS NULL

-- keep
CREATE TABLE IF NOT EXISTS _tailrace.`undo_7_or``ders` (
  k0 bigint NOT NULL,
  was tinyint NOT NULL,
  s datetime(6) NULL,
  e datetime(6) NULL,
  c0 decimal(12,2) NULL,
  PRIMARY KEY (k0)
) ENGINE = InnoDB

-- keep all
INSERT INTO _tailrace.`undo_7_or``ders` (k0, was, s, e, c0) SELECT t.`id`, 1, t.`__START_AT`, t.`__END_AT`, t.`Total` FROM `shop`.`or``ders` AS t WHERE t.`__END_AT` IS NULL ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep newest
INSERT INTO _tailrace.`undo_7_or``ders` (k0, was, s, e, c0) SELECT q.k0, t.`__START_AT` IS NOT NULL, t.`__START_AT`, t.`__END_AT`, t.`Total` FROM (/* list */) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`id` = q.k0 ORDER BY m.`__START_AT` DESC LIMIT 1) ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- remove
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 WHERE (q.was = 0 OR t.`__START_AT` > q.s)

-- remove whole
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 WHERE (q.was = 0 OR t.`__START_AT` >= q.s)

-- restore
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`, `Total`) SELECT q.k0, q.s, q.e, q.c0 FROM _tailrace.`undo_7_or``ders` AS q WHERE q.was = 1 ON DUPLICATE KEY UPDATE `Total` = VALUES(`Total`), `__END_AT` = VALUES(`__END_AT`)

-- done
CREATE TEMPORARY TABLE _tailrace.tailrace_done (k0 bigint NOT NULL, PRIMARY KEY (k0)) ENGINE = InnoDB

-- add done
INSERT INTO _tailrace.tailrace_done (k0) SELECT q.k0 FROM _tailrace.`undo_7_or``ders` AS q ON DUPLICATE KEY UPDATE _tailrace.tailrace_done.k0 = _tailrace.tailrace_done.k0

-- remove the rest
DELETE t FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 WHERE (q.was = 0 OR t.`__START_AT` > q.s) AND d.k0 IS NULL

-- restore the rest
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`) SELECT q.k0, q.s, q.e FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 WHERE q.was = 1 AND d.k0 IS NULL ON DUPLICATE KEY UPDATE `Total` = DEFAULT(`shop`.`or``ders`.`Total`), `__END_AT` = VALUES(`__END_AT`)

-- note
INSERT INTO _tailrace.tailrace_notes (k0, was, c0, c1, s, e) SELECT t.`id`, 1, t.`id`, t.`Total`, t.`__START_AT`, t.`__END_AT` FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND (q.was = 0 OR t.`__START_AT` >= q.s) ON DUPLICATE KEY UPDATE _tailrace.tailrace_notes.was = _tailrace.tailrace_notes.was

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `id` bigint NOT NULL,
  `Total` decimal(12,2),
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: versions end before or at their start
SELECT COUNT(*) FROM `shop`.`or``ders` WHERE `__END_AT` IS NOT NULL AND `__END_AT` <= `__START_AT`

-- invariant: keys have more than one open version
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` WHERE `__END_AT` IS NULL GROUP BY `id` HAVING COUNT(*) > 1) AS x

-- invariant: versions overlap the next version of their key
SELECT COUNT(*) FROM (SELECT `__END_AT` IS NULL AS open, LEAD(1) OVER w AS more, `__END_AT` AS e0, LEAD(`__START_AT`) OVER w AS n0 FROM `shop`.`or``ders` WINDOW w AS (PARTITION BY `id` ORDER BY `__START_AT`, `__END_AT` IS NULL)) AS x WHERE more = 1 AND (open OR n0 < e0)

