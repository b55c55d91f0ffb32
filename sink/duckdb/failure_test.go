//go:build !noduckdb

package duckdb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

func TestAFullDiskStopsWithARemedyAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=40m"); err != nil {
		t.Skipf("needs the right to mount a small file system: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	path := filepath.Join(dir, "x.duckdb")
	w := newWriter(t, path)
	tg := target("t", scd.Type1, "id int8 key", "v text")
	must(t, w.Create(ctx, tg))
	pad := func(n int) string { // does not compress
		var b strings.Builder
		for i := range 60 {
			fmt.Fprintf(&b, "%016x", uint64(n*61+i)*0x9E3779B97F4A7C15)
		}
		return b.String()
	}
	var err error
	id := 0
	for err == nil {
		var r scd.Round
		for range 1000 {
			r.Inserts = append(r.Inserts, row(id, pad(id)))
			id++
		}
		err = tryApply(w, tg, true, false, r)
	}
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "free space") {
		t.Fatal(err)
	}
	if durable, err := w.Durable(ctx); err != nil || durable != change.LSN(lsn-1) {
		t.Fatalf("durable %v, want the batch before %v: %v", durable, change.LSN(lsn), err)
	}
	if err := w.Close(ctx); err != nil {
		t.Logf("close: %v", err)
	}
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=400m"))
	w = newWriter(t, path)
	m, err := w.State(ctx)
	must(t, err)
	if m.Position != change.LSN(lsn-1) {
		t.Fatalf("the mark is at %v, want %v", m.Position, change.LSN(lsn-1))
	}
	count(t, w, "SELECT count(*) FROM t", id-1000)
	apply(t, w, tg, scd.Round{Inserts: []change.Row{row(id, "goes on")}})
}

func count(t testing.TB, w *duckdb.Writer, sql string, want int) {
	t.Helper()
	_, err := duckdb.Peek(w, ctx, sql, func(cells []*string) error {
		if *cells[0] != fmt.Sprint(want) {
			t.Fatalf("%s: %s, want %d", sql, *cells[0], want)
		}
		return nil
	})
	must(t, err)
}

func TestTooLittleMemoryIsNamedAndLosesNothing(t *testing.T) {
	path := file(t)
	w := newWriter(t, path, func(c *duckdb.Config) { c.MemoryLimit, c.PrimaryKey = "20MB", true })
	tg := target("t", scd.Type1, "id uuid key", "n int8")
	must(t, w.Create(ctx, tg))
	var err error
	id := 0
	for err == nil && id < 3_000_000 {
		var r scd.Round
		for range 100_000 {
			r.Inserts = append(r.Inserts, row(fmt.Sprintf("%016x", uint64(id)*0x9E3779B97F4A7C15)[:8]+fmt.Sprintf("-0000-0000-0000-%012x", id), id))
			id++
		}
		err = tryApply(w, tg, true, false, r)
	}
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "memory_limit") {
		t.Fatal(err)
	}
	must(t, w.Close(ctx))
	w = newWriter(t, path, func(c *duckdb.Config) { c.MemoryLimit = "1GB" })
	count(t, w, "SELECT count(*) FROM t", id-100_000)
}

func TestAFileThatIsNoDatabaseIsNamed(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"no database at all": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o644)
		},
		"a broken header": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte(strings.Repeat("\xff", 12000)), 16)
			return err
		},
	} {
		path := file(t)
		w := newWriter(t, path)
		must(t, w.Create(ctx, target("t", scd.Type1, "id int8 key")))
		must(t, w.Close(ctx))
		must(t, damage(path))
		w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
		must(t, err)
		err = w.Own(ctx, me, 0)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "restore") {
			t.Errorf("%s: %v", name, err)
		}
		must(t, w.Close(ctx))
	}
}

func TestAFolderWithoutRightsIsNamed(t *testing.T) {
	dir := t.TempDir()
	w, err := duckdb.New(duckdb.Config{Path: "/proc/tailrace/x.duckdb", Pipeline: "p"})
	must(t, err)
	if err := w.Own(ctx, me, 0); err == nil {
		t.Fatal("made a file in /proc")
	}
	if os.Getuid() != 0 { // root may do anything
		must(t, os.Chmod(dir, 0o500))
		w, err = duckdb.New(duckdb.Config{Path: filepath.Join(dir, "x.duckdb"), Pipeline: "p"})
		must(t, err)
		if err := w.Own(ctx, me, 0); fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "right") {
			t.Fatal(err)
		}
	}
}

func TestAfterAnErrorTheWriterMustBeReopened(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type1, "id int8 key", "n int4")
	must(t, w.Create(ctx, tg))
	if err := tryApply(w, tg, true, false, scd.Round{Inserts: []change.Row{row("x", 1)}}); fault.KindOf(err) != fault.Corrupt {
		t.Fatal(err)
	}
	if err := tryApply(w, tg, true, false, scd.Round{Inserts: []change.Row{row(1, 1)}}); err == nil {
		t.Fatal("went on after an error")
	}
	expect(t, dump(t, w, tg))
}

func TestCancellingInterruptsTheEngine(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type1, "id int8 key", "n int4")
	must(t, w.Create(ctx, tg))
	c, cancel := context.WithCancel(ctx)
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	_, err := duckdb.Peek(w, c, "SELECT count(*) FROM range(100000) a, range(1000000) b WHERE a.range * b.range % 7 = 3", func([]*string) error { return nil })
	if !errors.Is(err, context.Canceled) || time.Since(start) > 3*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	c, cancel = context.WithCancel(ctx)
	cancel()
	if err := w.Apply(c, &sink.Batch{First: true, Position: change.LSN(5)}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// TestALongTransactionLetsOthersWrite: while a source transaction in pieces is
// open, Save and Load of other targets go on, and what it cannot see is refused
// as transient.
func TestALongTransactionLetsOthersWrite(t *testing.T) {
	path := file(t)
	w := newWriter(t, path)
	a, b := target("a", scd.Type1, "id int8 key", "n int4"), target("b", scd.Type1, "id int8 key", "n int4")
	must(t, w.Create(ctx, a))
	must(t, w.Create(ctx, b))
	must(t, tryApply(w, a, true, true, scd.Round{Inserts: []change.Row{row(1, 1)}}))
	must(t, w.Save(ctx, checkpoint.Mark{Phase: checkpoint.Live, Slot: "s"}))
	_, err := w.Load(ctx, b, sink.Copy{Rows: strings.NewReader("7\t7\n")}, false, checkpoint.Table{Target: b.Name, Source: b.Source, Phase: checkpoint.Catching})
	must(t, err)
	lsn++
	must(t, w.Apply(ctx, &sink.Batch{Position: change.LSN(lsn), Live: []change.Name{b.Name}, Targets: []sink.TargetRounds{{Target: a, Rounds: []scd.Round{{Inserts: []change.Row{row(2, 2)}}}}}}))
	m, err := w.State(ctx)
	must(t, err)
	if m.Slot != "s" || m.Position != change.LSN(lsn) || len(m.Tables) != 1 || m.Tables[0].Phase != checkpoint.Live {
		t.Fatalf("%+v", m)
	}
	expect(t, dump(t, w, a), "1|1", "2|2")
	must(t, tryApply(w, a, true, true, scd.Round{Inserts: []change.Row{row(3, 3)}}))
	_, err = w.Load(ctx, b, sink.Copy{Rows: strings.NewReader("8\t8\n")}, true, checkpoint.Table{Target: b.Name, Source: b.Source, Phase: checkpoint.Live})
	must(t, err)
	if err := tryApply(w, b, false, false, scd.Round{Upserts: []change.Row{row(8, 9)}}); fault.KindOf(err) != fault.Transient {
		t.Fatalf("a transaction older than the copy wrote to its target: %v", err)
	}
	must(t, w.Close(ctx))
	w = newWriter(t, path)
	expect(t, dump(t, w, a), "1|1", "2|2")
	expect(t, dump(t, w, b), "8|8")
}
