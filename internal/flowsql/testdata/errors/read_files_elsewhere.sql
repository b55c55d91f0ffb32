CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM STREAM read_files('s3://bucket/landing/', format => 'json')
KEYS (id) SEQUENCE BY n;
