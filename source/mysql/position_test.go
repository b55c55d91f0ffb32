package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// refuses follows from a mark and wants a refusal with a remedy.
func (r *rig) refuses(from change.Position, resume, says string) {
	r.Helper()
	_, err := r.follow(from, change.Position{File: 1 << 30}, source.FollowOptions{Resume: resume})
	if err == nil || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), says) {
		r.Errorf("want a refusal that says %q: %v", says, err)
	}
}

func TestMarkThatTheLogDoesNotHoldIsRefused(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)", "FLUSH BINARY LOGS")
		from, begin := r.mark()
		r.exec("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
		first := r.streamFrom(from, begin)
		mark, resume := first.end, first.resume

		// It goes on where it was, and the resume position stays true over files.
		r.exec("INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (4)")
		h, err := r.follow(mark, r.head(), source.FollowOptions{Resume: resume})
		if err != nil {
			t.Fatal(err)
		}
		r.want(h, "INSERT t new [3]", "INSERT t new [4]")
		r.exec("INSERT INTO t VALUES (5)")
		if h, err = r.follow(h.end, r.head(), source.FollowOptions{Resume: h.resume}); err != nil {
			t.Fatal(err)
		}
		r.want(h, "INSERT t new [5]")

		was, err := parseResume(resume)
		if err != nil || was.created == 0 || was.gtids == "" || was.file == "" {
			t.Fatalf("resume %q: %v", resume, err)
		}
		other := was
		other.created--
		r.refuses(mark, other.String(), "was begun at")
		other = was
		other.file = "another" + was.file[strings.LastIndexByte(was.file, '.'):]
		r.refuses(mark, other.String(), "log_bin was changed")
		other = was
		other.gtids = strings.Replace(was.gtids+",", ",", "0000,", 1)[:len(was.gtids)+4]
		r.refuses(mark, other.String(), "GTIDs")
		r.refuses(change.Position{File: mark.File, Offset: 1 << 40}, "", "has")
		r.refuses(change.Position{File: mark.File + 100, Offset: 4}, "", "newest log file")

		// MariaDB purges no file that a reader had until a moment ago.
		for range 100 {
			r.exec(fmt.Sprintf("PURGE BINARY LOGS TO '%s'", h.resume[:strings.IndexByte(h.resume, ' ')]))
			if st, err := r.source.State(t.Context()); err != nil || mark.Before(st.Oldest) {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		r.refuses(mark, resume, "purged")
		st, err := r.source.State(t.Context())
		if err != nil || !st.Slotless || !mark.Before(st.Oldest) || st.Head.Before(st.Oldest) {
			t.Errorf("state %+v: %v", st, err)
		}

		// The numbers begin anew, and come back to where they were.
		reset := "RESET MASTER"
		if !r.server.Binaries.MariaDB {
			reset = "RESET BINARY LOGS AND GTIDS"
		}
		at, text := h.end, h.resume
		time.Sleep(1100 * time.Millisecond) // files are told apart by the second in which they were begun
		r.exec(reset, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
		for r.head().File <= at.File {
			r.exec("FLUSH BINARY LOGS")
		}
		if _, err := r.follow(at, r.head(), source.FollowOptions{Resume: text}); err == nil || fault.KindOf(err) != fault.Operator {
			t.Errorf("after RESET MASTER: %v", err)
		}
	}, dbtest.Dedicated())
}

// The server is killed while it is followed: the stream ends with an error that is
// retried, and a new one goes on without a hole.
func TestStreamGoesOnAfterTheServerWasKilled(t *testing.T) {
	server := dbtest.MariaDB(t, dbtest.Dedicated())
	r := newRig(t, server, Config{})
	r.exec("CREATE TABLE t (id int PRIMARY KEY)")
	from := r.head()
	r.exec("INSERT INTO t VALUES (1)")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(chan history, 1)
	fails := make(chan error, 1)
	go func() {
		var h history
		fails <- r.source.Follow(ctx, from, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
			for _, tx := range seg.Txs {
				if len(tx.Changes) > 0 {
					h.end, h.resume = tx.End, tx.Resume
					got <- h
				}
			}
			return nil
		})
	}()
	h := <-got
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := <-fails; fault.KindOf(err) != fault.Transient {
		t.Errorf("the stream ended with %v", err)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec("INSERT INTO t VALUES (2)")
	h, err := r.follow(h.end, r.head(), source.FollowOptions{Resume: h.resume})
	if err != nil {
		t.Fatal(err)
	}
	r.want(h, "INSERT t new [2]")

	// A log that is shorter than the mark: what a crash without sync_binlog = 1 leaves.
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	file := h.resume[:strings.IndexByte(h.resume, ' ')]
	if err := os.Truncate(server.LogFile(file), int64(h.end.Offset)-30); err != nil {
		t.Fatal(err)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.refuses(h.end, h.resume, "bytes")
}

func TestServerThatSaysNothingCountsAsGone(t *testing.T) {
	server := dbtest.MariaDB(t, dbtest.Dedicated())
	r := newRig(t, server, Config{})
	r.source.silence = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	fails := make(chan error, 1)
	started := make(chan struct{})
	r.exec("CREATE TABLE t (id int PRIMARY KEY)")
	from := r.head()
	r.exec("INSERT INTO t VALUES (1)")
	go func() {
		var once sync.Once
		fails <- r.source.Follow(ctx, from, source.FollowOptions{}, func(context.Context, *change.Segment) error {
			once.Do(func() { close(started) })
			return nil
		})
	}()
	<-started
	resume, err := server.Pause()
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(4*time.Second, resume) // ending a stream asks the server too
	if err := <-fails; fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "silent") {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)")
		from := r.head()
		r.exec("INSERT INTO t VALUES (1)")
		ctx, cancel := context.WithCancel(t.Context())
		err := r.source.Follow(ctx, from, source.FollowOptions{}, func(ctx context.Context, _ *change.Segment) error {
			cancel()
			<-ctx.Done() // a caller that takes no more
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		err = r.source.Follow(ctx, r.head(), source.FollowOptions{}, func(context.Context, *change.Segment) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// MariaDB ends the first of two readers with one number. MySQL tells them apart by an
// identifier that every connection of ours makes anew.
func TestSecondReaderWithTheSameNumberEndsTheFirst(t *testing.T) {
	r := newRig(t, dbtest.MariaDB(t), Config{})
	r.exec("CREATE TABLE t (id int PRIMARY KEY)")
	from := r.head()
	r.exec("INSERT INTO t VALUES (1)")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 2)
	started := make(chan struct{}, 100)
	run := func(s *Source) {
		ended <- s.Follow(ctx, from, source.FollowOptions{}, func(context.Context, *change.Segment) error {
			started <- struct{}{}
			return nil
		})
	}
	go run(r.source)
	<-started
	go run(r.open(r.source.cfg))
	if err := <-ended; fault.KindOf(err) != fault.Transient || ctx.Err() != nil {
		t.Errorf("the first reader ended with %v", err)
	}
	cancel()
	<-ended
}

// A session of a snapshot that is lost cannot be had again: the copy begins anew.
func TestCopyWhoseSessionsWereKilledIsRetried(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
		rel := r.relation("t")
		snap, err := r.source.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer snap.Close(context.Background())
		for _, id := range r.server.Query(t, "", "SELECT id FROM information_schema.processlist WHERE db = '"+r.database+"'") {
			r.server.Exec(t, "", "KILL "+id)
		}
		time.Sleep(200 * time.Millisecond)
		for range 5 {
			_, err := snap.Copy(t.Context(), source.CopyRequest{Table: rel.Table, Columns: []string{"id"}}, io.Discard)
			if fault.KindOf(err) != fault.Transient {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)")
		followed := []source.Followed{{Table: r.relation("p").Table}, {Table: r.relation("c").Table}}
		findings := func(s *Source) (text string) {
			all, err := s.Check(t.Context(), followed)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				text += fmt.Sprintf("%v: %s; %s\n", f.Blocks, f.What, f.Remedy)
			}
			return text
		}
		if got := findings(r.source); strings.Contains(got, "true:") || !strings.Contains(got, "ON DELETE CASCADE") {
			t.Errorf("findings:\n%s", got)
		}
		r.exec("CREATE USER weak IDENTIFIED BY 'weak'", "GRANT SELECT ON *.* TO weak")
		defer r.exec("DROP USER weak")
		cfg := r.source.cfg
		cfg.DSN = r.server.URLAs("weak", "weak", r.database)
		got := findings(r.open(cfg))
		for _, want := range []string{"GRANT REPLICATION SLAVE ON *.* TO 'weak'@'%'", "RELOAD"} {
			if !strings.Contains(got, want) {
				t.Errorf("findings have no %q:\n%s", want, got)
			}
		}
		r.exec("GRANT LOCK TABLES ON `" + r.database + "`.* TO weak")
		if got := findings(r.open(cfg)); !strings.Contains(got, "false: the account may not lock all of the source for a moment: a copy that needs a lock takes it on the followed tables") {
			t.Errorf("with the right to LOCK TABLES:\n%s", got)
		}
		cfg.DSN = r.server.URLAs("weak", "wrong", r.database)
		if _, err := r.open(cfg).State(t.Context()); fault.KindOf(err) != fault.Operator || strings.Contains(err.Error(), "wrong") {
			t.Errorf("%v", err)
		}
	})
}

func TestSettingsThatMakeTheLogUnreadableBlock(t *testing.T) {
	server := dbtest.MariaDB(t, dbtest.Setting("binlog-format", "MIXED"))
	r := newRig(t, server, Config{})
	all, err := r.source.Check(t.Context(), nil)
	if err != nil || len(all) == 0 || !all[0].Blocks || !strings.Contains(all[0].Remedy, "binlog_format = 'ROW'") {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := r.source.Snapshot(t.Context()); fault.KindOf(err) != fault.Operator {
		t.Errorf("%v", err)
	}
	r.refuses(r.head(), "", "binlog_format")
	quiet := slog.New(slog.DiscardHandler)
	if _, err := New(Config{DSN: "postgres://u:secret@h/d", Logger: quiet}); fault.KindOf(err) != fault.Usage || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

// The server ends the thread that sends us its log: retried, and nothing is missed.
func TestStreamGoesOnAfterItsThreadWasKilled(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)")
		from, resume := r.mark()
		r.exec("INSERT INTO t VALUES (1)")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		got, fails := make(chan change.Tx, 10), make(chan error, 1)
		go func() {
			fails <- r.source.Follow(ctx, from, source.FollowOptions{Resume: resume}, func(_ context.Context, seg *change.Segment) error {
				for _, tx := range seg.Txs {
					if len(tx.Changes) > 0 {
						got <- tx
					}
				}
				return nil
			})
		}()
		first := <-got
		for _, line := range r.server.Query(t, "", "SHOW PROCESSLIST") {
			if fields := strings.Split(line, "|"); strings.HasPrefix(fields[4], "Binlog Dump") {
				r.exec("KILL " + fields[0])
			}
		}
		r.exec("INSERT INTO t VALUES (2)")
		if err := <-fails; fault.KindOf(err) != fault.Transient {
			t.Errorf("the stream ended with %v", err)
		}
		h := r.streamFrom(first.End, first.Resume)
		r.want(h, "INSERT t new [2]")
	})
}

// GTIDs with tags, which MySQL has since 8.3.
func TestTaggedGTIDsAreInTheMark(t *testing.T) {
	onAll(t, func(r *rig) {
		if f, err := r.source.facts(t.Context()); err != nil || f.mariaDB || !f.atLeast(8, 3) {
			return
		}
		r.exec("CREATE TABLE t (id int PRIMARY KEY)")
		from, resume := r.mark()
		r.exec("SET gtid_next = 'AUTOMATIC:shop'", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "SET gtid_next = 'AUTOMATIC:other'", "INSERT INTO t VALUES (3)", "SET gtid_next = 'AUTOMATIC'", "INSERT INTO t VALUES (4)")
		h := r.streamFrom(from, resume)
		r.want(h, "INSERT t new [1]", "INSERT t new [2]", "INSERT t new [3]", "INSERT t new [4]")
		set, err := parseResume(h.resume)
		if err != nil || !strings.Contains(set.gtids, ":shop:") {
			t.Fatalf("%q: %v", h.resume, err)
		}
		if got := r.server.Query(t, "", fmt.Sprintf("SELECT gtid_subtract(@@global.gtid_executed, '%s'), gtid_subtract('%[1]s', @@global.gtid_executed)", set.gtids)); got[0] != "|" {
			t.Errorf("GTIDs %s differ from the server's by %s", set.gtids, got[0])
		}
		r.exec("SET gtid_next = 'AUTOMATIC:shop'", "INSERT INTO t VALUES (5)", "SET gtid_next = 'AUTOMATIC'")
		r.want(r.streamFrom(h.end, h.resume), "INSERT t new [5]")
		r.source.Locate(source.Located{System: "another", Position: h.end, Resume: h.resume})
		st, err := r.source.State(t.Context())
		if err != nil || st.Moved == nil || st.Moved.Problem != "" {
			t.Fatalf("%+v: %v", st.Moved, err)
		}
		g, err := r.goOn(st.Moved.Position, st.Moved.Resume)
		if err != nil {
			t.Fatal(err)
		}
		r.want(g, "INSERT t new [5]")
	})
}
