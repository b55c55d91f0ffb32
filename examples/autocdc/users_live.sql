-- A table that holds a change feed since it took over from files: rows are only added.
create table users_live("userId" int, name text, city text, operation text, "sequenceNum" bigint);
insert into users_live values
  (123, null, null, 'DELETE', 6),
  (125, 'Mercedes', 'Guadalajara', 'UPDATE', 6),
  (125, 'Mercedes', 'Mexicali', 'UPDATE', 5),
  (123, 'Isabel', 'Chihuahua', 'UPDATE', 5);
