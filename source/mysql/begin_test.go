package mysql

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

// All sessions of a snapshot see the same moment, and it is the one that the position
// names, while others write as fast as they can; by whichever lock, or none.
func TestSnapshotIsExactWhileOthersWrite(t *testing.T) {
	onAll(t, func(r *rig) {
		t := r.T
		r.exec("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
		stop := make(chan struct{})
		var pause atomic.Int64 // of a writer
		var writers sync.WaitGroup
		for w := range 3 {
			db := r.server.Open(t, r.database)
			writers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					tx, err := db.Begin()
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(pause.Load()))
					id := w*1_000_000 + i
					_, err1 := tx.Exec(fmt.Sprintf("INSERT INTO a VALUES (%d)", id))
					_, err2 := tx.Exec(fmt.Sprintf("INSERT INTO b VALUES (%d)", id))
					if err := errors.Join(err1, err2, tx.Commit()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		client := "REPLICATION CLIENT"
		if r.server.Binaries.MariaDB {
			client = "BINLOG MONITOR"
		}
		r.exec("CREATE USER weak IDENTIFIED BY 'weak'", "GRANT SELECT, REPLICATION SLAVE, "+client+" ON *.* TO weak")
		defer r.exec("DROP USER weak")
		weak := r.source.cfg
		weak.DSN = r.server.URLAs("weak", "weak", r.database)
		never := r.source.cfg
		never.SnapshotLock = LockNever
		two := []source.Followed{{Table: r.relation("a").Table}, {Table: r.relation("b").Table}}
		if pause.Store(int64(2 * time.Millisecond)); r.server.Binaries.MariaDB { // so many sessions hardly ever agree by themselves
			pause.Store(0)
			weak.Sessions, never.Sessions = 24, 24
		}
		for i, way := range []struct {
			cfg   Config
			grant string
			locks string // of a server that cannot do without
		}{
			{r.source.cfg, "", "all"}, {r.source.cfg, "", "all"}, {weak, "", "none"}, {never, "", "none"},
			{weak, "GRANT LOCK TABLES ON `" + r.database + "`.* TO weak", "tables"}, {weak, "", "tables"},
		} {
			if way.locks != "none" {
				pause.Store(0)
			}
			if way.grant != "" {
				r.exec(way.grant)
			}
			time.Sleep(50 * time.Millisecond)
			a, b := r.relation("a"), r.relation("b")
			from := r.open(way.cfg)
			if err := from.Publish(t.Context(), two); err != nil {
				t.Fatal(err)
			}
			snap, err := from.Snapshot(t.Context())
			if err != nil {
				t.Fatalf("way %d: %v", i, err)
			}
			if got := snap.(*snapshot).lock; got != way.locks && got != "none" {
				t.Errorf("way %d took lock %s, want %s", i, got, way.locks)
			}
			var rows [2][]string
			var copies sync.WaitGroup
			copies.Go(func() { rows[0] = r.copyFrom(snap, a) })
			copies.Go(func() { rows[1] = r.copyFrom(snap, b) })
			copies.Wait()
			if err := snap.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if strings.Join(rows[0], " ") != strings.Join(rows[1], " ") {
				t.Errorf("two sessions saw %d and %d rows", len(rows[0]), len(rows[1]))
			}
			// What the log says up to the position is what the snapshot holds.
			h, err := r.follow(change.Position{File: snap.Position().File, Offset: 4}, snap.Position(), source.FollowOptions{})
			if err != nil {
				t.Fatal(err)
			}
			logged := 0
			for _, e := range h.events {
				if e.table == "a" {
					logged++
				}
			}
			if logged != len(rows[0]) {
				t.Errorf("the snapshot at %s holds %d rows, the log up to there %d", snap.Position(), len(rows[0]), logged)
			}
			if h.end != snap.Position() {
				t.Errorf("the snapshot is at %s, inside the transaction that ends at %s", snap.Position(), h.end)
			}
			if got, err := parseResume(snap.(source.Resumable).Resume()); err != nil || h.resume[strings.LastIndexByte(h.resume, ' '):] == "" || got.gtids == "" {
				t.Errorf("resume %+v: %v", got, err)
			}
		}
		close(stop)
		writers.Wait()
	}, dbtest.Dedicated())
}
