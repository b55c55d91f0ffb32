begin;
truncate snapshot;
insert into snapshot values (2, 'Carmel'), (3, 'Los Angeles'), (4, 'Death Valley'), (6, 'Kings Canyon');
update snapshot_version set version = 1;
commit;
