package postgres

// pinned are the settings under which values have one spelling and statements
// one meaning, whatever a database, role or server has set.
const pinned = `SET client_encoding = 'UTF8';
SET DateStyle = 'ISO, MDY';
SET IntervalStyle = 'postgres';
SET TimeZone = 'UTC';
SET extra_float_digits = 3;
SET bytea_output = 'hex';
SET lc_monetary = 'C';
SET xmloption = 'content';
`
