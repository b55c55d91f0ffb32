-- A table that can only say what there is now, and a version that is raised with it.
create table snapshot("userId" int primary key, city text);
create table snapshot_version(version bigint);
insert into snapshot values (1, 'Oaxaca'), (2, 'Monterrey'), (3, 'Tijuana');
insert into snapshot_version values (0);
