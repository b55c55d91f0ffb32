package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// A whole schema of the kind that applications keep in MariaDB, followed while it is
// written: keys, triggers, generated columns, enums, time stamps that move by themselves.
func TestARentalShopIsFollowedUnderLoad(t *testing.T) {
	text, err := os.ReadFile("testdata/rentals.sql")
	if err != nil {
		t.Fatal(err)
	}
	shop := func(t *testing.T, kind string) {
		server, pg := dbtest.MySQL(t), dbtest.Postgres(t)
		database := server.Database(t)
		for _, statement := range strings.Split(string(text), ";\n") {
			if strings.TrimSpace(statement) != "" {
				server.Exec(t, database, statement)
			}
		}
		dest := freshDestination(t, pg, kind)
		config := filepath.Join(t.TempDir(), "rentals.yaml")
		flows := fmt.Sprintf("flows:\n  - source: %s.*\n  - {source: %[1]s.customer, target: customer_history, stored_as_scd_type: 2, track_history_except_column_list: [last_update]}\n  - {source: %[1]s.film, target: film_history, stored_as_scd_type: 2}\n", database)
		file := fmt.Sprintf("pipeline: %s\nsource: {kind: mysql, dsn: %q}\ndestination: {kind: %s, dsn: %q}\n%s", uniqueName("p"), server.URL(database), kind, dest.dsn, flows)
		if err := os.WriteFile(config, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		r := &rig{config: config, dest: dest, env: asUsersRun}
		contains(t, r.must(t, "check"), "payment_rental") // rows that a foreign key changes are in no log

		seed := seeded(t).Uint64()
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error, 3)
		var load sync.WaitGroup
		for n := range uint64(3) {
			db := server.Open(t, database)
			load.Go(func() { failed <- rent(ctx, db, rand.New(rand.NewPCG(seed, n))) })
		}
		p := r.start(t, nil) // the copy is taken under the load
		time.Sleep(2500 * time.Millisecond)
		p.kill()
		p = r.start(t, nil)
		time.Sleep(time.Second)
		var out string
		for code, n := 4, 0; code == 4 && n < 5; n++ { // a source that is always busy lets nobody lock it for a moment
			out, code = r.command(t, nil, "verify")
		}
		contains(t, out, "customer_history: 0 differences", "\n0 differences of ")
		stop()
		load.Wait()
		for range 3 {
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
		}
		p.stop(t)
		r.once(t)
		contains(t, r.must(t, "verify"), "\n0 differences of ")
		r.must(t, "status", "--check")
	}
	t.Parallel()
	for _, kind := range []string{"duckdb", "postgres", "mysql"} { // the last into the same server
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			shop(t, kind)
		})
	}
}

// rent does what such a shop does all day, in transactions, until ctx ends.
func rent(ctx context.Context, db *sql.DB, rnd *rand.Rand) error {
	for ctx.Err() == nil {
		var statements []string
		customer, inventory, film := 1+rnd.IntN(600), 1+rnd.IntN(4000), 1+rnd.IntN(1000)
		switch rnd.IntN(10) {
		case 0, 1, 2, 3: // a film is lent
			statements = []string{
				fmt.Sprintf("insert into rental (rental_date, inventory_id, customer_id, staff_id) values (now(), %d, %d, %d) on duplicate key update staff_id = 1", inventory, customer, 1+rnd.IntN(2)),
				fmt.Sprintf("insert into payment (customer_id, staff_id, rental_id, amount, fx, payment_date) values (%d, 1, last_insert_id(), %d.99, %g, now(3))", customer, rnd.IntN(9), rnd.Float64()),
				fmt.Sprintf("update inventory set state = b'010' where inventory_id = %d", inventory),
				fmt.Sprintf("update customer set points = if(points < 1000, points + 7, 18446744073709551615) where customer_id = %d", customer),
			}
		case 4, 5: // and comes back
			statements = []string{
				fmt.Sprintf("update rental set return_date = now(6) where return_date is null and customer_id = %d limit 3", customer),
				fmt.Sprintf("update inventory set state = b'001' where inventory_id = %d", inventory),
			}
		case 6: // somebody moves, or changes his name
			statements = []string{fmt.Sprintf("update address set address = concat('№ ', %d, ' „Straße“'), location = point(%d, %d.5), district = null where address_id = %d", rnd.IntN(99), rnd.IntN(9), rnd.IntN(50), 1+rnd.IntN(600)),
				fmt.Sprintf("update customer set last_name = elt(1 + %d, 'Ångström', '山田', 'O''Hara', ''), settings = json_object('n', %d, 'x', null) where customer_id = %d", rnd.IntN(4), rnd.IntN(9), customer)}
		case 7: // the price list
			statements = []string{fmt.Sprintf("update film set rental_rate = %d.49, special_features = %d, rating = elt(1 + %d, 'G', 'PG', 'R'), description = %s where film_id = %d", rnd.IntN(9), rnd.IntN(16), rnd.IntN(3), []string{"null", "''", "'new'"}[rnd.IntN(3)], film)}
		case 8: // old payments go
			statements = []string{fmt.Sprintf("delete from payment where customer_id = %d order by payment_id limit 5", customer)}
		case 9: // a film comes, and may go again
			statements = []string{"insert into film (title, language_id, release_year, runs) values ('Brand new', 1, 2024, '-00:00:01')",
				fmt.Sprintf("insert ignore into film_actor (actor_id, film_id) values (%d, last_insert_id())", 1+rnd.IntN(200)),
				fmt.Sprintf("delete from film_category where film_id = %d", film)}
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		for _, s := range statements {
			if _, err = tx.ExecContext(ctx, s); err != nil {
				break
			}
		}
		switch {
		case err == nil && rnd.IntN(20) > 0:
			err = tx.Commit()
		case err == nil:
			err = tx.Rollback()
		default:
			if e := tx.Rollback(); e != nil && ctx.Err() == nil {
				return e
			}
			if strings.Contains(err.Error(), "Deadlock") || strings.Contains(err.Error(), "Record has changed") {
				continue // two of them wanted the same rows
			}
		}
		if err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	return nil
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
