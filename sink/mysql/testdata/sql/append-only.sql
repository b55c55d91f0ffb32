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

-- stage of a resync
CREATE TABLE _tailrace.stage (
  `Total` decimal(12,2),
  `select` longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin

