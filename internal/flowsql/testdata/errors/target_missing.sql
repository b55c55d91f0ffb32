CREATE FLOW f AS AUTO CDC
FROM stream(shop.users_cdf)
KEYS (id) SEQUENCE BY n;
