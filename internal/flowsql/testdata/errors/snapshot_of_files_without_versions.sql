CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM SNAPSHOT read_files('landing/', format => 'csv')
KEYS (id);
