//go:build soak

package mysql

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

// One transaction of 4.4 GB makes a log file of that size: the events behind 4 GB say half
// of where they end, and the protocol cannot ask for such a place. It takes some minutes
// and 15 GB of disk.
func TestAFileAboveFourGigabytes(t *testing.T) {
	const rows, size = 2200, 2_000_000
	r := newRig(t, dbtest.MariaDB(t, dbtest.Dedicated()), Config{})
	r.exec("CREATE TABLE small (id int PRIMARY KEY)", "CREATE TABLE large (id int PRIMARY KEY, v longblob)", "INSERT INTO small VALUES (1)")
	from := r.head()
	r.exec(fmt.Sprintf("INSERT INTO large SELECT seq, repeat(char(65 + seq %% 26), %d) FROM seq_1_to_%d", size, rows))
	behind := r.head()
	r.exec("INSERT INTO small VALUES (2)", "UPDATE small SET id = 3 WHERE id = 2")
	until := r.head()

	// read reads to the end, and tells of each transaction how many changes it had.
	read := func(from change.Position) (txs []string, ends []change.Position, at []change.Position) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		reached := errors.New("reached")
		changes, last := 0, 0
		err := r.source.Follow(ctx, from, source.FollowOptions{PieceBytes: 8 << 20}, func(_ context.Context, seg *change.Segment) error {
			for i := range seg.Txs {
				tx := &seg.Txs[i]
				for j := range tx.Changes {
					c := &tx.Changes[j]
					if changes++; c.Table.Name == r.name("large") {
						values, err := c.New.Values(nil, 2)
						if err != nil {
							return err
						}
						if last++; string(values[0].Data) != fmt.Sprint(last) || len(values[1].Data) != 2+2*size {
							return fmt.Errorf("row %d is [%s] with %d bytes", last, values[0].Data, len(values[1].Data))
						}
					}
				}
				if !tx.Last {
					continue
				}
				if changes > 0 {
					txs, ends = append(txs, fmt.Sprint(changes)), append(ends, tx.End)
				}
				if changes, at = 0, append(at, tx.End); !tx.End.Before(until) {
					return reached
				}
			}
			return nil
		})
		if !errors.Is(err, reached) {
			t.Fatal(err)
		}
		return txs, ends, at
	}
	txs, ends, _ := read(from)
	if fmt.Sprint(txs) != fmt.Sprintf("[%d 1 1]", rows) {
		t.Fatalf("transactions of %v changes", txs)
	}
	end := ends[0]
	if end.Offset <= 1<<32 || end.File != from.File || behind.Before(end) {
		t.Fatalf("the transaction ends at %s, the log was at %s then", end, behind)
	}
	if txs, _, at := read(end); fmt.Sprint(txs) != "[1 1]" || at[0].Before(end) {
		t.Errorf("from %s: transactions of %v changes, the first end is %s", end, txs, at[0])
	}
}
