INSERT INTO users VALUES (1, 'a');
