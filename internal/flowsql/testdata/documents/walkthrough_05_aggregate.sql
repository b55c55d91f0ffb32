CREATE OR REPLACE MATERIALIZED VIEW customers_history_agg AS
SELECT
  id,
  count(address) AS address_count,
  count(email) AS email_count,
  count(firstname) AS firstname_count,
  count(lastname) AS lastname_count
FROM customers_history
GROUP BY id;
