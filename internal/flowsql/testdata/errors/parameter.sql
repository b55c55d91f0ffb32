CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM stream(${catalog}.shop.users_cdf)
KEYS (id) SEQUENCE BY n;
