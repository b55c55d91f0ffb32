-- A table that holds a change feed: rows are only ever added.
create table users_cdf("userId" int, name text, city text, operation text, "sequenceNum" bigint);
insert into users_cdf values
  (124, 'Raul', 'Oaxaca', 'INSERT', 1),
  (123, 'Isabel', 'Monterrey', 'INSERT', 1),
  (125, 'Mercedes', 'Tijuana', 'INSERT', 2),
  (126, 'Lily', 'Cancun', 'INSERT', 2),
  (123, null, null, 'DELETE', 6),
  (125, 'Mercedes', 'Guadalajara', 'UPDATE', 6),
  (125, 'Mercedes', 'Mexicali', 'UPDATE', 5),
  (123, 'Isabel', 'Chihuahua', 'UPDATE', 5);
