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

