-- The users examples from files: the same feed into three tables.
CREATE OR REFRESH STREAMING TABLE users_current;

CREATE FLOW current_users AS AUTO CDC INTO users_current
FROM STREAM read_files('../autocdc/feed/*.jsonl', format => 'json',
  schema => 'userId INT, name STRING, city STRING, operation STRING, sequenceNum BIGINT')
KEYS (userId)
APPLY AS DELETE WHEN operation = "DELETE"
APPLY AS TRUNCATE WHEN operation = "TRUNCATE"
SEQUENCE BY sequenceNum
COLUMNS * EXCEPT (operation, sequenceNum, _rescued_data)
STORED AS SCD TYPE 1;

CREATE OR REFRESH STREAMING TABLE users_history
FLOW AUTO CDC
FROM STREAM read_files('../autocdc/feed/*.jsonl', format => 'json',
  schema => 'userId INT, name STRING, city STRING, operation STRING, sequenceNum BIGINT')
KEYS (userId)
APPLY AS DELETE WHEN operation = "DELETE"
SEQUENCE BY sequenceNum
COLUMNS * EXCEPT (operation, sequenceNum, _rescued_data)
STORED AS SCD TYPE 2;

-- A move to another city opens no version.
CREATE OR REFRESH STREAMING TABLE users_history_without_moves
FLOW AUTO CDC
FROM STREAM read_files('../autocdc/feed/*.jsonl', format => 'json',
  schema => 'userId INT, name STRING, city STRING, operation STRING, sequenceNum BIGINT')
KEYS (userId)
APPLY AS DELETE WHEN operation = "DELETE"
SEQUENCE BY sequenceNum
COLUMNS * EXCEPT (operation, sequenceNum, _rescued_data)
STORED AS SCD TYPE 2
TRACK HISTORY ON * EXCEPT (city);
