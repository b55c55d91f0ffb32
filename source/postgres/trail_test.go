package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

// A trail gives what its snapshot does not hold, beside the live stream and whatever that
// has confirmed, and leaves nothing.
func TestATrailGoesOnWhereItsSnapshotEnds(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
		live := f.follow(source.FollowOptions{})
		f.exec("INSERT INTO t VALUES (1, 'copied')")
		beside, err := New(f.source.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx := testContext(t)
		defer beside.Close(ctx)
		trail, err := beside.Trail(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer trail.Close(ctx)
		f.exec("INSERT INTO t VALUES (2, 'followed')")
		live.next()
		f.source.Confirm(live.next().End)
		table := f.relation("t").Table
		if got := copyText(t, trail, source.CopyRequest{Table: table, Columns: columnsOf(table)}); got != "1\tcopied\n" {
			t.Errorf("the snapshot holds %q", got)
		}
		if state, err := f.source.State(ctx); err != nil || state.Beside <= 0 {
			t.Errorf("the log that is kept beside the slot: %d bytes, %v", state.Beside, err)
		}
		f.exec("UPDATE t SET v = 'later' WHERE id = 1")
		txs := make(chan change.Tx, 100)
		following, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			ended <- trail.Follow(following, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
				for _, tx := range seg.Txs {
					if len(tx.Changes) > 0 {
						txs <- tx
					}
				}
				return nil
			})
		}()
		next := func() change.Tx {
			t.Helper()
			select {
			case tx := <-txs:
				return tx
			case err := <-ended:
				t.Fatalf("the trail ended: %v", err)
			case <-time.After(30 * time.Second):
				t.Fatal("nothing came")
			}
			return change.Tx{}
		}
		first := next()
		wantTx(t, first, "INSERT t (2, followed)")
		if !trail.Position().Before(first.End) {
			t.Errorf("the trail from %s gave a transaction that ends at %s", trail.Position(), first.End)
		}
		wantTx(t, next(), "UPDATE t (1, later)")
		f.exec("DELETE FROM t WHERE id = 2")
		last := next()
		wantTx(t, last, "DELETE t K(2, ~)")
		trail.Confirm(last.End)
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the trail ended with %v", err)
		}
		if _, err := trail.Copy(ctx, source.CopyRequest{Table: table, Columns: columnsOf(table)}, nil); err == nil {
			t.Error("a trail that was followed can be copied from")
		}
		deadline := time.Now().Add(10 * time.Second)
		for f.query("SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = current_database()") != "0" {
			if time.Now().After(deadline) {
				t.Fatal("the trail's slot is left")
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}
