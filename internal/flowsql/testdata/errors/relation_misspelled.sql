-- source: files users_cdf
CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM stream(shop.user_cdf)
KEYS (id) SEQUENCE BY n;
