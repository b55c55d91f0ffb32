CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM SNAPSHOT (SELECT * FROM shop.users)
WITH VERSION (SELECT min(v) FROM shop.versions WHERE v > (SELECT v FROM last_snapshot_version()))
KEYS (id);
