-- A feed and snapshots into one target, and catalogs that are mapped.
-- catalogs: main=public old.data=archive
CREATE STREAMING TABLE main.x.orders;
CREATE FLOW live AS AUTO CDC INTO main.x.orders FROM stream(main.shop.orders_cdf) KEYS (id) SEQUENCE BY seq COLUMNS * EXCEPT (seq);
CREATE FLOW nightly AS AUTO CDC INTO MAIN.X.ORDERS FROM SNAPSHOT (SELECT id, price FROM old.data.orders WHERE price > 0) WITH VERSION (SELECT seq FROM old.data.versions) KEYS (id);
CREATE FLOW other AS AUTO CDC INTO main.x.orders FROM stream(old.other.orders_cdf) KEYS (id) SEQUENCE BY seq COLUMNS * EXCEPT (seq);
