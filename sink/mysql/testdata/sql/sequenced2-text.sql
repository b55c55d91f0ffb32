-- create
CREATE TABLE `shop`.`or``ders` (
  `id` bigint NOT NULL,
  `double` bigint,
  `__START_AT` varchar(765) NOT NULL,
  `__END_AT` varchar(765),
  PRIMARY KEY (`id`, `__START_AT`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`id`, `__START_AT`, `__END_AT`)

-- fetch
SELECT q.n, t.`__START_AT`, t.`__END_AT` FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`id` = q.k0 ORDER BY m.`__START_AT` DESC LIMIT 1)

-- end versions, free false
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`) VALUES /* list */ ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`)

-- count versions
SELECT COUNT(*) FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`id`, t.`__START_AT`) IN (/* list */)

-- drop versions
DELETE t FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`id`, t.`__START_AT`) IN (/* list */)

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
SELECT q.n, r.seq, r.at, r.body, r.tombstone, r.time FROM (SELECT q.n, q.k, COALESCE((SELECT m.seq FROM _tailrace.`records_706e5106f7bb2268_or``ders` AS m FORCE INDEX (identity) WHERE m.`key` = q.k AND m.seq < q.s ORDER BY m.seq DESC LIMIT 1), q.s) AS b FROM (SELECT 0 AS n, x'01' AS k, x'02' AS s UNION ALL SELECT 1, x'03', x'') AS q LIMIT 2) AS q STRAIGHT_JOIN _tailrace.`records_706e5106f7bb2268_or``ders` AS r FORCE INDEX (identity) ON r.`key` >= q.k AND r.`key` <= q.k AND r.seq >= q.b

-- below
(seq < x'00ff' OR seq = x'00ff' AND at <= x'')

-- keep
CREATE TABLE IF NOT EXISTS _tailrace.`undo_7_or``ders` (
  k0 bigint NOT NULL,
  ks varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  was tinyint NOT NULL,
  e varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL,
  PRIMARY KEY (k0, ks)
) ENGINE = InnoDB

-- keep all
INSERT INTO _tailrace.`undo_7_or``ders` (k0, ks, was, e) SELECT t.`id`, t.`__START_AT`, 1, t.`__END_AT` FROM `shop`.`or``ders` AS t ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep rows
INSERT INTO _tailrace.`undo_7_or``ders` (k0, ks, was, e) SELECT t.`id`, t.`__START_AT`, 1, t.`__END_AT` FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`id`, t.`__START_AT`) IN (/* list */) ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- keep none
INSERT INTO _tailrace.`undo_7_or``ders` (k0, ks, was) VALUES /* list */ ON DUPLICATE KEY UPDATE _tailrace.`undo_7_or``ders`.was = _tailrace.`undo_7_or``ders`.was

-- remove
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = q.ks WHERE q.was = 0

-- remove whole
DELETE t FROM _tailrace.`undo_7_or``ders` AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = q.ks

-- restore
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`) SELECT q.k0, q.ks, q.e FROM _tailrace.`undo_7_or``ders` AS q WHERE q.was = 1 ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`)

-- done
CREATE TEMPORARY TABLE _tailrace.tailrace_done (k0 bigint NOT NULL, ks varchar(765) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL, PRIMARY KEY (k0, ks)) ENGINE = InnoDB

-- add done
INSERT INTO _tailrace.tailrace_done (k0, ks) SELECT q.k0, q.ks FROM _tailrace.`undo_7_or``ders` AS q ON DUPLICATE KEY UPDATE _tailrace.tailrace_done.k0 = _tailrace.tailrace_done.k0

-- remove the rest
DELETE t FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 AND d.ks = q.ks STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = q.ks WHERE q.was = 0 AND d.k0 IS NULL

-- restore the rest
INSERT INTO `shop`.`or``ders` (`id`, `__START_AT`, `__END_AT`) SELECT q.k0, q.ks, q.e FROM _tailrace.`undo_8_or``ders` AS q LEFT JOIN _tailrace.tailrace_done AS d ON d.k0 = q.k0 AND d.ks = q.ks WHERE q.was = 1 AND d.k0 IS NULL ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`)

-- note
INSERT INTO _tailrace.tailrace_notes (k0, ks, was, c0, c1, s, e) SELECT q.k0, q.ks, t.`id` IS NOT NULL, t.`id`, t.`double`, t.`__START_AT`, t.`__END_AT` FROM (SELECT k0 AS k0, ks FROM _tailrace.`undo_7_or``ders`) AS q LEFT JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0 AND t.`__START_AT` = q.ks ON DUPLICATE KEY UPDATE _tailrace.tailrace_notes.was = _tailrace.tailrace_notes.was

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
  `double` bigint,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: versions end before or at their start
SELECT COUNT(*) FROM `shop`.`or``ders` WHERE `__END_AT` IS NOT NULL AND CAST(`__END_AT` AS BINARY) <= CAST(`__START_AT` AS BINARY)

-- invariant: keys have more than one open version
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` WHERE `__END_AT` IS NULL GROUP BY `id` HAVING COUNT(*) > 1) AS x

-- invariant: versions overlap the next version of their key
SELECT COUNT(*) FROM (SELECT `__END_AT` IS NULL AS open, LEAD(1) OVER w AS more, CAST(`__END_AT` AS BINARY) AS e0, LEAD(CAST(`__START_AT` AS BINARY)) OVER w AS n0 FROM `shop`.`or``ders` WINDOW w AS (PARTITION BY `id` ORDER BY CAST(`__START_AT` AS BINARY), `__END_AT` IS NULL)) AS x WHERE more = 1 AND (open OR n0 < e0)

