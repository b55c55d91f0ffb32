-- create
CREATE TABLE `shop`.`or``ders` (
  `at` varchar(762) NOT NULL,
  `Total` decimal(12,2),
  `id` bigint NOT NULL,
  `__START_AT` bigint NOT NULL,
  `__END_AT` bigint,
  PRIMARY KEY (`at`, `id`, `__START_AT`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`at`, `Total`, `id`, `__START_AT`, `__END_AT`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`at`, `Total`, `id`, `__START_AT`, `__END_AT`)

-- fetch
SELECT q.n, t.`__START_AT`, t.`__END_AT`, t.`Total` FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`at` = q.k0 AND t.`id` = q.k1 AND t.`__START_AT` = (SELECT m.`__START_AT` FROM `shop`.`or``ders` AS m FORCE INDEX (`PRIMARY`) WHERE m.`at` = q.k0 AND m.`id` = q.k1 ORDER BY m.`__START_AT` DESC LIMIT 1)

-- end versions, free false
INSERT INTO `shop`.`or``ders` (`at`, `id`, `__START_AT`, `__END_AT`) VALUES /* list */ ON DUPLICATE KEY UPDATE `__END_AT` = VALUES(`__END_AT`)

-- count versions
SELECT COUNT(*) FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`at`, t.`id`, t.`__START_AT`) IN (/* list */)

-- drop versions
DELETE t FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE (t.`at`, t.`id`, t.`__START_AT`) IN (/* list */)

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

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `at` varchar(762) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
  `Total` decimal(12,2),
  `id` bigint NOT NULL,
  PRIMARY KEY (`at`, `id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: versions end before or at their start
SELECT COUNT(*) FROM `shop`.`or``ders` WHERE `__END_AT` IS NOT NULL AND `__END_AT` <= `__START_AT`

-- invariant: keys have more than one open version
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` WHERE `__END_AT` IS NULL GROUP BY `at`, `id` HAVING COUNT(*) > 1) AS x

-- invariant: versions overlap the next version of their key
SELECT COUNT(*) FROM (SELECT `__END_AT` IS NULL AS open, LEAD(1) OVER w AS more, `__END_AT` AS e0, LEAD(`__START_AT`) OVER w AS n0 FROM `shop`.`or``ders` WINDOW w AS (PARTITION BY `at`, `id` ORDER BY `__START_AT`, `__END_AT` IS NULL)) AS x WHERE more = 1 AND (open OR n0 < e0)

