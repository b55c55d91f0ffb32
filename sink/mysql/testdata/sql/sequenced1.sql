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

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `id` bigint NOT NULL,
  `Total` decimal(12,2),
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: keys stand more than once
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` GROUP BY `id` HAVING COUNT(*) > 1) AS x

