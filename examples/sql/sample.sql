-- What the pipelines of this folder that read a database find there.
create schema cdc_tutorial;
create table cdc_tutorial.users_cdf("userId" int, name text, city text, operation text, "sequenceNum" bigint);
insert into cdc_tutorial.users_cdf values
  (124, 'Raul', 'Oaxaca', 'INSERT', 1),
  (123, 'Isabel', 'Monterrey', 'INSERT', 1),
  (125, 'Mercedes', 'Tijuana', 'INSERT', 2),
  (126, 'Lily', 'Cancun', 'INSERT', 2),
  (123, null, null, 'DELETE', 6),
  (125, 'Mercedes', 'Guadalajara', 'UPDATE', 6),
  (125, 'Mercedes', 'Mexicali', 'UPDATE', 5),
  (123, 'Isabel', 'Chihuahua', 'UPDATE', 5);
-- The third document reads the same feed under another name, and its first table keeps all columns.
create schema cdc_data;
create table cdc_data.users as table cdc_tutorial.users_cdf;
create table cdc_tutorial.snapshot("userId" int, city text);
create table cdc_tutorial.snapshot_version(version bigint);
insert into cdc_tutorial.snapshot values (1, 'Oaxaca'), (2, 'Monterrey'), (3, 'Tijuana');
insert into cdc_tutorial.snapshot_version values (0);
