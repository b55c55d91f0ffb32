CREATE STREAMING TABLE t TBLPROPERTIES ('tailrace.max_delete_share' = '1')
FLOW AUTO CDC FROM stream(shop.users) KEYS (id) SEQUENCE BY n;
