CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM STREAM read_files('landing/', format => 'json', schema => 'id INT; name STRING')
KEYS (id) SEQUENCE BY n;
