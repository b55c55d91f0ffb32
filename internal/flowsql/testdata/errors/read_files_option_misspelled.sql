CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM STREAM read_files('landing/', format => 'csv', haeder => true)
KEYS (id) SEQUENCE BY n;
