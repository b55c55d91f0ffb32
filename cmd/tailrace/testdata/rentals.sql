-- A film rental shop, as applications of this kind keep it: unsigned keys, enums and sets,
-- years, decimals, time stamps that move by themselves, triggers, a keyless log, and names
-- in several languages.
create table language (
  language_id tinyint unsigned not null auto_increment primary key,
  name char(20) character set utf8mb4 not null,
  last_update timestamp not null default current_timestamp on update current_timestamp
);
create table category (
  category_id tinyint unsigned not null auto_increment primary key,
  name varchar(25) not null,
  last_update timestamp not null default current_timestamp on update current_timestamp
);
create table actor (
  actor_id smallint unsigned not null auto_increment primary key,
  first_name varchar(45) character set latin1 not null,
  last_name varchar(45) not null,
  born date,
  last_update timestamp(3) not null default current_timestamp(3) on update current_timestamp(3),
  key idx_actor_last_name (last_name)
);
create table film (
  film_id mediumint unsigned not null auto_increment primary key,
  title varchar(128) not null,
  description text,
  release_year year,
  language_id tinyint unsigned not null,
  original_language_id tinyint unsigned,
  rental_duration tinyint unsigned not null default 3,
  rental_rate decimal(4,2) not null default 4.99,
  length smallint unsigned,
  replacement_cost decimal(5,2) not null default 19.99,
  rating enum('G','PG','PG-13','R','NC-17') default 'G',
  special_features set('Trailers','Commentaries','Deleted Scenes','Behind the Scenes'),
  runs time,
  price_per_day decimal(8,4) as (rental_rate / rental_duration) stored,
  last_update timestamp not null default current_timestamp on update current_timestamp,
  key idx_title (title),
  constraint film_language foreign key (language_id) references language (language_id) on update cascade
);
create table film_actor (
  actor_id smallint unsigned not null,
  film_id mediumint unsigned not null,
  last_update timestamp not null default current_timestamp on update current_timestamp,
  primary key (actor_id, film_id),
  constraint film_actor_actor foreign key (actor_id) references actor (actor_id) on update cascade,
  constraint film_actor_film foreign key (film_id) references film (film_id) on update cascade
);
create table film_category (
  film_id mediumint unsigned not null,
  category_id tinyint unsigned not null,
  last_update timestamp not null default current_timestamp on update current_timestamp,
  primary key (film_id, category_id)
);
create table film_text (
  film_id mediumint unsigned not null primary key,
  title varchar(255) not null,
  description text
);
create table address (
  address_id smallint unsigned not null auto_increment primary key,
  address varchar(50) not null,
  district varchar(20),
  postal_code varchar(10),
  phone varchar(20) not null,
  location point,
  last_update timestamp not null default current_timestamp on update current_timestamp
);
create table store (
  store_id tinyint unsigned not null auto_increment primary key,
  address_id smallint unsigned not null,
  opening time not null default '09:30:00',
  last_update timestamp not null default current_timestamp on update current_timestamp
);
create table staff (
  staff_id tinyint unsigned not null auto_increment primary key,
  first_name varchar(45) not null,
  last_name varchar(45) not null,
  picture blob,
  email varchar(50),
  store_id tinyint unsigned not null,
  active boolean not null default true,
  username varchar(16) not null,
  password binary(20),
  last_update timestamp not null default current_timestamp on update current_timestamp
);
create table customer (
  customer_id int unsigned not null auto_increment primary key,
  store_id tinyint unsigned not null,
  first_name varchar(45) not null,
  last_name varchar(45) not null,
  email varchar(50),
  address_id smallint unsigned not null,
  active boolean not null default true,
  points bigint unsigned not null default 0,
  settings json,
  create_date datetime not null,
  last_update timestamp null default current_timestamp on update current_timestamp,
  key idx_last_name (last_name)
);
create table inventory (
  inventory_id mediumint unsigned not null auto_increment primary key,
  film_id mediumint unsigned not null,
  store_id tinyint unsigned not null,
  state bit(3) not null default b'001',
  last_update timestamp not null default current_timestamp on update current_timestamp
);
create table rental (
  rental_id int not null auto_increment primary key,
  rental_date datetime not null,
  inventory_id mediumint unsigned not null,
  customer_id int unsigned not null,
  return_date datetime(6),
  staff_id tinyint unsigned not null,
  last_update timestamp not null default current_timestamp on update current_timestamp,
  unique key (rental_date, inventory_id, customer_id)
);
create table payment (
  payment_id bigint unsigned not null auto_increment primary key,
  customer_id int unsigned not null,
  staff_id tinyint unsigned not null,
  rental_id int,
  amount decimal(5,2) not null,
  fx double,
  payment_date datetime(3) not null,
  last_update timestamp null default current_timestamp on update current_timestamp,
  constraint payment_rental foreign key (rental_id) references rental (rental_id) on delete set null on update cascade
);
create trigger film_text_ins after insert on film for each row
  insert into film_text (film_id, title, description) values (new.film_id, new.title, new.description);
create trigger film_text_upd after update on film for each row
  update film_text set title = new.title, description = new.description where film_id = old.film_id;
create trigger film_text_del after delete on film for each row
  delete from film_text where film_id = old.film_id;

create table digits (d int primary key);
insert into digits values (0), (1), (2), (3), (4), (5), (6), (7), (8), (9);
insert into language (name) values ('English'), ('Italiano'), ('日本語'), ('Français'), ('Deutsch'), ('한국어');
insert into category (name) values ('Action'), ('Animation'), ('Kinder'), ('Classics'), ('Comedy'), ('Documentary'), ('Drama'), ('Family');
insert into actor (first_name, last_name, born)
  select concat('Zoë ', a.d), concat('Müller-', b.d, c.d), if(c.d = 0, null, date_add('1930-01-01', interval a.d * 1000 + b.d * 37 day)) from digits a, digits b, digits c where a.d < 2;
insert into film (title, description, release_year, language_id, original_language_id, rental_duration, rental_rate, length, replacement_cost, rating, special_features, runs)
  select concat('Film ', a.d, b.d, c.d), if(c.d = 3, null, repeat(concat('An epic tale №', a.d, b.d, c.d, ' of a mad cow 🐄; '), 1 + c.d)), 1901 + a.d * 12 + b.d, 1 + b.d % 6, nullif(c.d % 7, 0),
    3 + c.d % 5, 0.99 + a.d % 3, 46 + b.d * 13 + c.d, 9.99 + a.d, elt(1 + c.d % 5, 'G', 'PG', 'PG-13', 'R', 'NC-17'), (a.d * 100 + b.d * 10 + c.d) % 16, sec_to_time(60 * (46 + b.d * 13 + c.d))
  from digits a, digits b, digits c;
insert into film_actor (actor_id, film_id) select distinct 1 + (f.film_id * 7 + d.d * 31) % 200, f.film_id from film f, digits d where d.d < 5;
insert into film_category (film_id, category_id) select film_id, 1 + film_id % 8 from film;
insert into address (address, district, postal_code, phone, location)
  select concat(a.d, b.d, c.d, ' Rue de l''Église'), nullif(concat('District ', b.d), 'District 3'), '', concat('+41 ', a.d, b.d, c.d), if(c.d = 0, null, point(a.d + b.d / 10, 47.5 + c.d / 100)) from digits a, digits b, digits c where a.d < 6;
insert into store (address_id) values (1), (2);
insert into staff (first_name, last_name, picture, email, store_id, username, password)
  values ('Mike', 'Hillyer', x'89504e470d0a1a0a00ff', 'mike@example.org', 1, 'Mike', unhex(left(sha2('a', 256), 40))), ('Jon', 'Stephens', null, null, 2, 'Jon', x'00');
insert into customer (store_id, first_name, last_name, email, address_id, active, points, settings, create_date)
  select 1 + c.d % 2, concat('Иван', a.d), concat('O''Neil ', b.d, c.d), if(c.d = 9, null, concat(a.d, b.d, c.d, '@example.org')), 1 + (a.d * 100 + b.d * 10 + c.d) % 600, c.d <> 4,
    if(c.d = 5, 18446744073709551615, a.d), if(b.d = 2, null, concat('{"lang": "', elt(1 + c.d % 3, 'de', 'fr', 'ja'), '", "n": ', c.d, '}')), date_add('2024-01-31 23:59:59', interval a.d * 7 + b.d day)
  from digits a, digits b, digits c where a.d < 6;
insert into inventory (film_id, store_id, state) select 1 + (a.d * 1000 + b.d * 100 + c.d * 10 + e.d) % 1000, 1 + c.d % 2, e.d % 8 from digits a, digits b, digits c, digits e where a.d < 4;
insert into rental (rental_date, inventory_id, customer_id, return_date, staff_id)
  select date_add('2025-05-24 22:53:30', interval (a.d * 1000 + b.d * 100 + c.d * 10 + e.d) * 613 second), 1 + (a.d * 977 + b.d * 100 + c.d * 10 + e.d) % 4000, 1 + (a.d * 61 + b.d * 100 + c.d * 10 + e.d) % 600,
    if(e.d = 7, null, date_add('2025-06-01 10:00:00.123456', interval (a.d * 1000 + b.d * 100 + c.d * 10 + e.d) minute)), 1 + e.d % 2
  from digits a, digits b, digits c, digits e;
insert into payment (customer_id, staff_id, rental_id, amount, fx, payment_date)
  select customer_id, staff_id, rental_id, 0.99 + rental_id % 9, if(rental_id % 5 = 0, null, 1 / (1 + rental_id % 97)), rental_date from rental;
drop table digits;
