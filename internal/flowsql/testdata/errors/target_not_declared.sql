CREATE FLOW f AS AUTO CDC INTO users
FROM stream(shop.users_cdf)
KEYS (id) SEQUENCE BY n;
