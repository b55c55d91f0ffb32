-- create
CREATE TABLE `shop`.`or``ders` (
  `Total` decimal(12,2),
  `select` longtext
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

-- insert
INSERT INTO `shop`.`or``ders` (`Total`, `select`) VALUES /* list */

-- load
LOAD DATA LOCAL INFILE 'Reader::name' INTO TABLE `shop`.`or``ders` CHARACTER SET binary FIELDS TERMINATED BY '	' ESCAPED BY '\' LINES TERMINATED BY '
' (`Total`, `select`)

-- resync
DELETE FROM `shop`.`or``ders`

-- resync
INSERT INTO `shop`.`or``ders` (`Total`, `select`) SELECT s.`Total`, s.`select` FROM _tailrace.stage AS s

-- keep
CREATE TABLE IF NOT EXISTS _tailrace.`undo_7_or``ders` (
  n bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  came tinyint NOT NULL DEFAULT 1,
  c0 decimal(12,2) NULL,
  c1 longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL
) ENGINE = InnoDB

-- keep all
INSERT INTO _tailrace.`undo_7_or``ders` (came, c0, c1) SELECT -1, t.`Total`, t.`select` FROM `shop`.`or``ders` AS t

-- kept fields
c0, c1

-- count
INSERT INTO _tailrace.tailrace_net (h, n) SELECT q.h, SUM(q.came) FROM (SELECT UNHEX(SHA2(CONCAT(COALESCE(SHA2(c0, 256), '-'), COALESCE(SHA2(c1, 256), '-')), 256)) AS h, came FROM _tailrace.`undo_7_or``ders` WHERE came <> 0) AS q GROUP BY q.h ON DUPLICATE KEY UPDATE _tailrace.tailrace_net.n = _tailrace.tailrace_net.n + VALUES(n)

-- count
(SELECT t.`Total` AS c0, t.`select` AS c1, d.n AS n, ROW_NUMBER() OVER (PARTITION BY d.h ORDER BY d.h) AS number FROM `shop`.`or``ders` AS t STRAIGHT_JOIN _tailrace.tailrace_net AS d ON d.h = UNHEX(SHA2(CONCAT(COALESCE(SHA2(t.`Total`, 256), '-'), COALESCE(SHA2(t.`select`, 256), '-')), 256)) WHERE d.n > 0) AS x

-- count
(SELECT w.*, d.n AS n, ROW_NUMBER() OVER (PARTITION BY w.h ORDER BY w.h) AS number FROM (SELECT c0 AS c0, c1 AS c1, UNHEX(SHA2(CONCAT(COALESCE(SHA2(c0, 256), '-'), COALESCE(SHA2(c1, 256), '-')), 256)) AS h FROM _tailrace.`undo_7_or``ders` WHERE came < 0 UNION ALL SELECT c0 AS c0, c1 AS c1, UNHEX(SHA2(CONCAT(COALESCE(SHA2(c0, 256), '-'), COALESCE(SHA2(c1, 256), '-')), 256)) AS h FROM _tailrace.`undo_7_or``ders` WHERE came < 0) AS w STRAIGHT_JOIN _tailrace.tailrace_net AS d ON d.h = w.h WHERE d.n < 0) AS x

-- count
CREATE TEMPORARY TABLE _tailrace.tailrace_surplus (c0 decimal(12,2) NULL, c1 longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NULL) ENGINE = InnoDB

-- count
INSERT INTO _tailrace.changes (`_change_type`, `_mark`, `_commit_time`, `Total`, `select`) SELECT 'insert', '0/1', UTC_TIMESTAMP(6), x.c0, x.c1 FROM x

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `Total` decimal(12,2),
  `select` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

