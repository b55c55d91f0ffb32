CREATE STREAMING TABLE t TBLPROPERTIES ('tailrace.on_bad_event' = 'fail')
FLOW AUTO CDC FROM SNAPSHOT shop.users KEYS (id);
