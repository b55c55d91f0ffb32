CREATE OR REFRESH STREAMING TABLE users;
/* the feed of users
CREATE FLOW f AS AUTO CDC INTO users
FROM stream(shop.users_cdf)
KEYS (id)
SEQUENCE BY n;
