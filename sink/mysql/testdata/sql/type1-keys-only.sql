-- create
CREATE TABLE `shop`.`or``ders` (
  `id` bigint NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`id`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`id`)

-- fetch
SELECT q.n FROM (/* list */) AS q STRAIGHT_JOIN `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) ON t.`id` = q.k0

-- upsert
INSERT INTO `shop`.`or``ders` (`id`) VALUES /* list */ ON DUPLICATE KEY UPDATE `id` = `id`

-- load over what is there
LOAD DATA LOCAL INFILE 'Reader::name' REPLACE INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`id`)

-- delete
DELETE t FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE t.`id` IN (/* list */)

-- lock
SELECT COUNT(*) FROM `shop`.`or``ders` AS t FORCE INDEX (`PRIMARY`) WHERE t.`id` IN (/* list */) FOR UPDATE

-- patch
INSERT INTO `shop`.`or``ders` (`id`) VALUES /* list */ ON DUPLICATE KEY UPDATE `id` = `shop`.`or``ders`.`id`

-- resync
DELETE t FROM `shop`.`or``ders` AS t LEFT JOIN _tailrace.stage AS s ON t.`id` = s.`id` WHERE s.`id` IS NULL

-- resync
INSERT INTO `shop`.`or``ders` (`id`) SELECT s.`id` FROM _tailrace.stage AS s LEFT JOIN `shop`.`or``ders` AS t ON t.`id` = s.`id` WHERE t.`id` IS NULL

-- notes of a resync
CREATE TABLE _tailrace.notes (`id` bigint NOT NULL) ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- note what differs
INSERT INTO _tailrace.notes (`id`) SELECT s.`id` FROM _tailrace.stage AS s LEFT JOIN `shop`.`or``ders` AS t ON t.`id` = s.`id` WHERE t.`id` IS NULL OR FALSE

-- note what differs
INSERT INTO _tailrace.notes (`id`) SELECT t.`id` FROM `shop`.`or``ders` AS t LEFT JOIN _tailrace.stage AS s ON t.`id` = s.`id` WHERE s.`id` IS NULL

-- resync of what is noted
DELETE t FROM (SELECT DISTINCT `id` FROM _tailrace.notes) AS n STRAIGHT_JOIN `shop`.`or``ders` AS t ON t.`id` = n.`id` LEFT JOIN _tailrace.stage AS s ON t.`id` = s.`id` WHERE s.`id` IS NULL

-- resync of what is noted
INSERT INTO `shop`.`or``ders` (`id`) SELECT s.`id` FROM (SELECT DISTINCT `id` FROM _tailrace.notes) AS n STRAIGHT_JOIN _tailrace.stage AS s ON s.`id` = n.`id` LEFT JOIN `shop`.`or``ders` AS t ON t.`id` = s.`id` WHERE t.`id` IS NULL

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `id` bigint NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- invariant: keys stand more than once
SELECT COUNT(*) FROM (SELECT 1 FROM `shop`.`or``ders` GROUP BY `id` HAVING COUNT(*) > 1) AS x

