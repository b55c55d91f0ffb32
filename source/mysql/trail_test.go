package mysql

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/source"
)

// A trail gives what its snapshot does not hold, of its tables alone, beside the live
// stream, which goes on.
func TestATrailGoesOnWhereItsSnapshotEnds(t *testing.T) {
	onAll(t, func(r *rig) {
		t := r.T
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", "CREATE TABLE other (id int PRIMARY KEY)")
		table := r.relation("t").Table
		collect := func(into chan string) func(context.Context, *change.Segment) error {
			return func(_ context.Context, seg *change.Segment) error {
				for _, tx := range seg.Txs {
					for i := range tx.Changes {
						c := &tx.Changes[i]
						into <- c.Op.String() + " " + c.Table.Name.Table + " " + show(c.New, len(c.Table.Columns))
					}
				}
				return nil
			}
		}
		next := func(from chan string, want string) {
			t.Helper()
			select {
			case got := <-from:
				if got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			case <-ctx.Done():
				t.Fatalf("%s did not come", want)
			}
		}
		live, ended := make(chan string, 100), make(chan error, 2)
		head := r.head()
		go func() { ended <- r.source.Follow(ctx, head, source.FollowOptions{}, collect(live)) }()
		r.exec("INSERT INTO t VALUES (1, 'copied')")
		next(live, "INSERT t [1] [copied]")
		trail, err := r.open(r.source.cfg).Trail(ctx, []change.Name{table.Name})
		if err != nil {
			t.Fatal(err)
		}
		defer trail.Close(context.Background())
		r.exec("INSERT INTO t VALUES (2, 'followed')", "INSERT INTO other VALUES (1)", "DROP TABLE other")
		request := source.CopyRequest{Table: table, Columns: []string{"id", "v"}}
		var b bytes.Buffer
		if _, err := trail.Copy(ctx, request, &b); err != nil || b.String() != "1\tcopied\n" {
			t.Errorf("the snapshot holds %q: %v", b.String(), err)
		}
		behind := make(chan string, 100)
		go func() { ended <- trail.Follow(ctx, source.FollowOptions{}, collect(behind)) }()
		next(behind, "INSERT t [2] [followed]")
		r.exec("UPDATE t SET v = 'later' WHERE id = 1")
		next(behind, "UPDATE t [1] [later]")
		next(live, "INSERT t [2] [followed]")
		if _, err := trail.Copy(ctx, request, &b); !errors.Is(err, errClosed) {
			t.Errorf("a trail that was followed can be copied from: %v", err)
		}
		cancel()
		<-ended
		<-ended
	})
}
