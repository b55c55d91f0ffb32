CREATE TABLE users (id INT);
