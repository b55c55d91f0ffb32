package files_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
	"tailrace/source/files"
)

var idColumn = columns("id", "bigint")

func idLines(from, to int) string {
	var s strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&s, "{\"id\":%d}\n", i)
	}
	return s.String()
}

func TestFilesComeInOrderOfPathAndRelation(t *testing.T) {
	r := newRig(t,
		files.Relation{Name: "orders", Path: "in/orders/**/*.json", Format: "jsonl", Columns: idColumn},
		files.Relation{Name: "customers", Path: "in/customers/*", Format: "jsonl", Columns: idColumn})
	for _, p := range []string{"orders/b.json", "orders/a/z.json", "orders/a.json", "orders/a/y/x.json", "orders/B.json", "customers/1", "customers/10", "customers/2",
		"orders/_SUCCESS.json", "orders/.a.json.part", "orders/_tmp/q.json", "orders/a.csv", "customers/_x/1"} {
		r.write("in/"+p, idLines(0, 1))
	}
	res := r.drain(source.FollowOptions{})
	if res.err != nil {
		t.Fatal(res.err)
	}
	same(t, "order", res.paths(), "orders:B.json orders:a.json orders:a/y/x.json orders:a/z.json orders:b.json customers:1 customers:10 customers:2")
	for i, tx := range res.txs {
		n := uint64(i + 1)
		if tx.Begin.Offset != n || tx.End.Offset != n || tx.XID != uint32(n) || tx.Path != tx.File.Path || tx.File.Rows != 1 || tx.File.Size != 9 || len(tx.File.Checksum) != 64 {
			t.Errorf("file %d: %+v %+v", n, tx, tx.File)
		}
		if tx.CommitTime.Location() != time.UTC || time.Since(tx.CommitTime) > time.Minute || tx.CommitTime.Nanosecond()%1000 != 0 {
			t.Errorf("file %d was taken at %v", n, tx.CommitTime)
		}
	}
	same(t, "quiet points", res.quiet, []change.Position{{Offset: 8}})
}

func TestOrderTimeTakesOlderFilesFirst(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn, Order: "time"})
	base := time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC)
	r.writeAt("c.json", "", base)
	r.writeAt("a.json", "", base.Add(time.Second))
	r.writeAt("b.json", "", base.Add(time.Second))
	r.writeAt("d.json", "", base.Add(-time.Microsecond))
	res := r.drain(source.FollowOptions{})
	same(t, "order", res.paths(), "r:d.json r:c.json r:a.json r:b.json")
	var keys []string
	for _, tx := range res.txs {
		keys = append(keys, tx.Path)
	}
	same(t, "keys", strings.Join(keys, " "), "00001714521599999999/d.json 00001714521600000000/c.json 00001714521601000000/a.json 00001714521601000000/b.json")
}

func TestALateFileWithASmallerNameIsTakenOnce(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	r.write("b.json", idLines(0, 1))
	res := follow(t, r.source(), change.Position{Offset: 7}, source.FollowOptions{}, func(res *result) bool {
		if len(res.txs) == 1 {
			r.write("a.json", idLines(1, 2))
			r.write("c.json", idLines(2, 3))
		}
		return len(res.txs) == 3
	})
	same(t, "order", res.paths(), "r:b.json r:a.json r:c.json")
	same(t, "end", res.txs[2].End, change.Position{Offset: 10})
	// A restart takes nothing again.
	r.write("d.json", idLines(3, 4))
	res = r.drain(source.FollowOptions{Taken: res.taken()})
	same(t, "after a restart", res.paths(), "r:d.json")
}

func TestTakenFilesAreComparedWithWhatIsThere(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "in/*.json", Format: "jsonl", Columns: idColumn})
	r.write("in/a.json", idLines(0, 3))
	r.write("in/b.json", idLines(3, 6))
	taken := r.drain(source.FollowOptions{}).taken()

	t.Run("touched, same content", func(t *testing.T) {
		r.writeAt("in/a.json", idLines(0, 3), time.Now().Add(-time.Minute))
		res := r.drain(source.FollowOptions{Taken: taken})
		if res.err != nil || len(res.txs) != 0 {
			t.Error(res.paths(), res.err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		os.Remove(filepath.Join(r.root, "in/b.json"))
		res := r.drain(source.FollowOptions{Taken: taken})
		if res.err != nil || len(res.txs) != 0 {
			t.Error(res.paths(), res.err)
		}
	})
	for name, content := range map[string]string{"longer": idLines(0, 4), "same size": strings.Replace(idLines(0, 3), "2", "7", 1)} {
		t.Run(name, func(t *testing.T) {
			r.writeAt("in/a.json", content, time.Now().Add(-time.Minute))
			res := r.drain(source.FollowOptions{Taken: taken})
			refused(t, res.err, "relation r, file a.json: it was taken already", "27 bytes of ", "checksum "+taken[0].Checksum, "put the old content back", "another name", "--overwrite")
			if len(res.txs) > 0 {
				t.Error("something was taken")
			}
		})
	}
	t.Run("changed while following", func(t *testing.T) {
		r.write("in/a.json", idLines(0, 3))
		res := follow(t, r.source(), change.Position{}, source.FollowOptions{}, func(res *result) bool {
			if len(res.txs) == 1 {
				r.writeAt("in/a.json", idLines(0, 2), time.Now().Add(-time.Minute))
			}
			return false
		})
		refused(t, res.err, "file a.json: it was taken already")
	})
}

// refused sees that err is an operator's and says all of that.
func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	if fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" {
		t.Errorf("no refusal with a remedy: %v", err)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error lacks %q:\n%v", p, err)
		}
	}
}

func TestAGrowingFileWaits(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	r.cfg.Poll = 50 * time.Millisecond
	r.write("b.json", idLines(0, 1)) // behind it in order
	full := filepath.Join(r.root, "a.json")
	f, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan time.Time, 1)
	go func() {
		defer f.Close()
		for i := range 20 {
			f.WriteString(`{"id":`)
			time.Sleep(10 * time.Millisecond)
			fmt.Fprintf(f, "%d}\n", i)
		}
		finished <- time.Now()
	}()
	res := r.drain(source.FollowOptions{})
	if res.err != nil {
		t.Fatal(res.err)
	}
	same(t, "order", res.paths(), "r:a.json r:b.json")
	if res.txs[0].File.Rows != 20 || res.txs[0].CommitTime.Before((<-finished).Truncate(time.Microsecond)) {
		t.Errorf("taken too early: %+v", res.txs[0].File)
	}
}

// Times of a file server may lie ahead of ours.
func TestFilesFromTheFutureAreTakenOnceTheyRest(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	for i := range 100 {
		r.writeAt(fmt.Sprintf("a%02d.json", i), idLines(0, 2), time.Now().Add(time.Hour))
	}
	began := time.Now()
	res := r.drain(source.FollowOptions{})
	if len(res.txs) != 100 {
		t.Errorf("%d files", len(res.txs))
	}
	if waited := time.Since(began); waited < 2*pollTest || waited > 100*pollTest {
		t.Errorf("taken after %v", waited)
	}
}

func TestOnceLeavesWhatCameLater(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	r.write("a.json", idLines(0, 1))
	r.writeAt("b.json", idLines(1, 2), time.Now()) // too young for the first look
	wrote := false
	res := follow(t, r.source(), change.Position{}, source.FollowOptions{Once: true}, func(res *result) bool {
		if !wrote {
			wrote = true
			r.write("aa.json", idLines(2, 3))
		}
		return len(res.quiet) > 0
	})
	same(t, "taken", res.paths(), "r:a.json r:b.json")
	same(t, "quiet", res.quiet, []change.Position{{Offset: 2}})
}

func TestOnceWithoutFilesIsQuietAtOnce(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "none/*.json", Format: "jsonl", Columns: idColumn})
	res := follow(t, r.source(), change.Position{Offset: 5}, source.FollowOptions{Once: true}, func(res *result) bool { return len(res.quiet) > 0 })
	same(t, "quiet", res.quiet, []change.Position{{Offset: 5}})
}

func TestALargeFileComesInPieces(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	const rows = 50_000
	r.write("a.json", idLines(0, rows))
	const piece = 64 << 10
	res := r.drain(source.FollowOptions{PieceBytes: piece})
	if res.err != nil || len(res.txs) != 1 || len(res.txs[0].Changes) != rows || res.txs[0].File.Rows != rows {
		t.Fatal(res.err, len(res.txs))
	}
	if res.bytes > piece+1024 {
		t.Errorf("a piece of %d bytes", res.bytes)
	}
	for i, line := range res.rows(t) {
		if want := fmt.Sprintf("%d|%d|~", i+1, i); line != want {
			t.Fatalf("row %d is %s", i, line)
		}
	}
}

// The last piece of a bad file is never handed on, however late the flaw comes.
func TestPiecesOfABadFileStayOpen(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	const rows = 50_000
	content := idLines(0, rows)
	r.write("a.json", content+`{"id":1`)
	res := r.drain(source.FollowOptions{PieceBytes: 64 << 10})
	if len(res.txs) != 0 || res.open == 0 {
		t.Errorf("%d files, %d changes open", len(res.txs), res.open)
	}
	refused(t, res.err, fmt.Sprintf("relation r, file a.json: line %d, byte %d: ", rows+1, len(content)+7), "cut off")
}

func TestAFileThatChangesWhileItIsReadIsRefused(t *testing.T) {
	for name, change := range map[string]func(*os.File, string){
		"appended":  func(f *os.File, _ string) { f.WriteString(idLines(0, 3)) },
		"rewritten": func(f *os.File, _ string) { f.WriteAt([]byte(`{"id":9}`), 0) },
		"cut":       func(f *os.File, _ string) { f.Truncate(1000) },
		"removed":   func(_ *os.File, path string) { os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
			r.write("a.json", idLines(0, 200_000))
			path := filepath.Join(r.root, "a.json")
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			f.Seek(0, 2)
			once := false
			res := follow(t, r.source(), changePosition, source.FollowOptions{PieceBytes: 64 << 10}, func(*result) bool {
				if !once {
					once = true
					change(f, path)
				}
				return false
			})
			if len(res.txs) > 0 {
				t.Error("it was handed on")
			}
			refused(t, res.err, "relation r, file a.json: ", "changed while it was read")
		})
	}
}

var changePosition change.Position

func TestFollowEndsWithItsContext(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.json", Format: "jsonl", Columns: idColumn})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- r.source().Follow(ctx, change.Position{}, source.FollowOptions{}, func(context.Context, *change.Segment) error { return nil })
	}()
	time.Sleep(3 * pollTest)
	cancel()
	select {
	case err := <-done:
		if err != context.Canceled {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on")
	}
}

// A relation that is taken once is taken to its end, says so, and is not looked at any
// more; one beside it is followed on.
func TestARelationThatIsTakenOnceEnds(t *testing.T) {
	id := files.DeclaredColumn{Name: "id", Type: "int"}
	seed := files.Relation{Name: "seed", Path: "seed/*.jsonl", Format: files.JSONLines, Columns: []files.DeclaredColumn{id}, Once: true}
	feed := files.Relation{Name: "feed", Path: "feed/*.jsonl", Format: files.JSONLines, Columns: []files.DeclaredColumn{id}}
	r := newRig(t, seed, feed)
	r.write("feed/1.jsonl", "{}")

	// Without a file it is early or misspelt, not at its end.
	res := r.drain(source.FollowOptions{})
	if got := res.paths(); got != "feed:1.jsonl" {
		t.Fatalf("handed on: %s", got)
	}
	taken := res.taken()
	r.write("seed/1.jsonl", "{}")
	r.write("seed/2.jsonl", "{}")
	res = follow(t, r.source(), change.Position{Offset: 1}, source.FollowOptions{Taken: taken}, func(res *result) bool {
		if len(res.txs) == 2 {
			r.write("seed/3.jsonl", "too late")
			r.write("feed/2.jsonl", "{}")
		}
		return len(res.txs) == 4
	})
	if got := res.paths(); got != "seed:1.jsonl seed:2.jsonl seed: feed:2.jsonl" || res.err != nil {
		t.Fatalf("handed on: %s, %v", got, res.err)
	}
	end := res.txs[2]
	if !end.File.Ends() || end.File.Rows != 2 || end.End.Offset != 3 {
		t.Fatalf("the end: %+v %+v", end, end.File)
	}
	taken = append(taken, res.taken()...)
	r.write("seed/1.jsonl", "changed")
	r.write("feed/3.jsonl", "{}")
	if res = r.drain(source.FollowOptions{Taken: taken}); res.paths() != "feed:3.jsonl" || res.err != nil {
		t.Fatalf("handed on: %s, %v", res.paths(), res.err)
	}
	// Followed after all, it goes on behind what was taken.
	r.cfg.Relations[0].Once = false
	r.write("seed/1.jsonl", "{}")
	r.write("seed/3.jsonl", "{}")
	if res = r.drain(source.FollowOptions{Taken: append(taken, res.taken()...)}); res.paths() != "seed:3.jsonl" || res.err != nil {
		t.Fatalf("handed on: %s, %v", res.paths(), res.err)
	}
}
