truncate cdc_tutorial.snapshot;
insert into cdc_tutorial.snapshot values (2, 'Carmel'), (3, 'Los Angeles'), (4, 'Death Valley'), (6, 'Kings Canyon');
update cdc_tutorial.snapshot_version set version = 1;
