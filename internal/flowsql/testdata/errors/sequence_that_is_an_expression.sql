CREATE OR REFRESH STREAMING TABLE users;
CREATE FLOW f AS AUTO CDC INTO users
FROM stream(shop.users_cdf)
KEYS (id)
SEQUENCE BY coalesce(a, b);
