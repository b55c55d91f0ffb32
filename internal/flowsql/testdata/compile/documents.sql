-- The documents' change feeds, each into a table of its own.
USE CATALOG main;
USE SCHEMA main.cdc_tutorial;
CREATE SCHEMA IF NOT EXISTS main.cdc_tutorial;

CREATE OR REFRESH STREAMING TABLE users_current;
CREATE FLOW apply_cdc AS AUTO CDC INTO
  users_current
FROM
  stream(main.cdc_tutorial.users_cdf)
KEYS
  (userId)
APPLY AS DELETE WHEN
  operation = "DELETE"
APPLY AS TRUNCATE WHEN
  operation = "TRUNCATE"
SEQUENCE BY
  sequenceNum
COLUMNS * EXCEPT
  (operation, sequenceNum)
STORED AS
  SCD TYPE 1;

CREATE OR REFRESH STREAMING TABLE users_history
TBLPROPERTIES(pipelines.channel = "PREVIEW", pipelines.cdc.tombstoneGCThresholdInSeconds = 3600)
FLOW AUTO CDC
FROM stream(users_cdf)
KEYS userId
APPLY AS DELETE WHEN operation = "DELETE"
SEQUENCE BY STRUCT(sequenceNum, name)
COLUMNS * EXCEPT operation, sequenceNum
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (city);

APPLY CHANGES INTO LIVE.plain FROM STREAM(LIVE.users) KEYS (id) SEQUENCE BY n;
CREATE STREAMING LIVE TABLE plain;
CREATE TEMPORARY VIEW users AS SELECT * FROM STREAM(main.cdc_tutorial.users_cdf);
