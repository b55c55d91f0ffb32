CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM STREAM read_kafka(bootstrapServers => 'k:9092', subscribe => 'users')
KEYS (id) SEQUENCE BY n;
