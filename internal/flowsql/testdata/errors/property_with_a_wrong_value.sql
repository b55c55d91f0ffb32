CREATE STREAMING TABLE t TBLPROPERTIES (pipelines.cdc.tombstoneGCThresholdInSeconds = 'two days')
FLOW AUTO CDC FROM stream(a.b) KEYS (id) SEQUENCE BY n;
