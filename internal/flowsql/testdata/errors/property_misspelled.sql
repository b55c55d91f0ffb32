CREATE STREAMING TABLE t TBLPROPERTIES ('tailrace.change_fed' = 'true')
FLOW AUTO CDC FROM stream(a.b) KEYS (id) SEQUENCE BY n;
