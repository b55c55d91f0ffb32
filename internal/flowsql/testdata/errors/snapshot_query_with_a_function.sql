CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM SNAPSHOT (SELECT id, date_format(at, 'yyyy') AS year FROM shop.users)
KEYS (id);
