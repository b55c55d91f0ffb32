-- source: files users_cdf
-- Change feeds in files.
CREATE STREAMING TABLE a FLOW AUTO CDC
FROM STREAM read_files('landing/customers', format => "json", inferColumnTypes => "true", maxFilesPerTrigger => 10) KEYS (id) SEQUENCE BY n;
CREATE STREAMING TABLE b;
CREATE FLOW of_csv AS AUTO CDC ONCE INTO b
FROM STREAM read_files('landing/b/', format => 'csv', sep => ';', nullValue => 'NULL', header => true, schema => 'id INT, at TIMESTAMP, price DECIMAL(10,2) COMMENT "x", f FLOAT')
KEYS (id) SEQUENCE BY at;
CREATE FLOW of_more AS AUTO CDC INTO b
FROM STREAM read_files(path => 'file:///landing/c', fileNamePattern => '*.csv', format => 'csv', delimiter => '\t') KEYS (id) SEQUENCE BY at;
CREATE STREAMING TABLE c FLOW AUTO CDC FROM STREAM read_files('x/*.parquet', format => 'parquet') KEYS (id) SEQUENCE BY n;
CREATE STREAMING TABLE d FLOW AUTO CDC FROM stream(main.cdc_tutorial.USERS_CDF) KEYS (userId) SEQUENCE BY n;
