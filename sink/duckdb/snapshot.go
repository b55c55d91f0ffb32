//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

// A snapshot is a copy of the file at a moment at which all of it lies in the file and
// nothing in the write-ahead file. Between two batches such a moment is made by a
// checkpoint; it then lasts as long as no other checkpoint runs, because commits alone
// write to the write-ahead file. So batches wait for the checkpoint and not for the
// copy: meanwhile the threshold is out of reach.
//
// In the copy the bookkeeping is replaced by what it says of the mark, so that no
// pipeline takes the snapshot for the destination that it was copied from.
const (
	neverCheckpoint = "1TB" // a write-ahead file does not grow to that during a copy

	// For how long a moment is looked for at which nothing else is being written, such
	// as a table's copy.
	settleMost = 20 * time.Second
	settleStep = 50 * time.Millisecond

	// Replacing the bookkeeping needs little memory, whatever the size of the file.
	stripMemory = "64MB"

	snapshotTable  = "snapshot"        // of each pipeline in the file: position, commit time, when it was taken
	snapshotTables = "snapshot_tables" // of each target: phase and since at that mark
)

// SnapshotPath is where a snapshot goes if nothing is said: NAME.snapshot.duckdb.
func (w *Writer) SnapshotPath() string {
	return strings.TrimSuffix(w.cfg.Path, ".duckdb") + ".snapshot.duckdb"
}

// Snapshot implements sink.Embedded.
func (w *Writer) Snapshot(ctx context.Context, path string) (taken sink.SnapshotTaken, err error) {
	if err := w.mustOwn(); err != nil {
		return taken, err
	}
	if !w.snapping.TryLock() {
		return taken, fault.Retry(nil, "a snapshot is being taken already")
	}
	defer w.snapping.Unlock()
	if path == "" {
		path = w.SnapshotPath()
	}
	began := time.Now()
	if err := w.mayReplace(ctx, path); err != nil {
		return taken, err
	}
	taken.Path = path
	made := path + ".tmp" // in the same folder, so that it can take the name
	defer func() {
		if err != nil {
			err = errors.Join(err, removeUnfinished(made))
		}
	}()
	if err := removeUnfinished(made); err != nil {
		return taken, w.explainSnapshot(path, err)
	}
	if taken.Held, err = w.copySettled(ctx, made); err == nil {
		err = w.strip(ctx, made, &taken)
	}
	if err == nil {
		taken.Bytes, err = settleFile(made)
	}
	if err == nil {
		err = os.RemoveAll(made + ".spill")
	}
	if err == nil {
		// A write-ahead file of the older snapshot belongs to nothing any more.
		if err = os.Remove(path + ".wal"); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		fault.KillPoint("snapshot made")
		err = os.Rename(made, path)
	}
	if err != nil {
		return taken, w.explainSnapshot(path, err)
	}
	taken.Took = time.Since(began)
	return taken, syncFolder(filepath.Dir(path))
}

// explainSnapshot judges an error of a snapshot's file: the pipeline's own is well.
func (w *Writer) explainSnapshot(path string, err error) error {
	op := "write the snapshot " + path
	if errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "No space left on device") || strings.Contains(err.Error(), "could not allocate") {
		return &fault.Error{Kind: fault.Operator, Op: op + " (an older one stays; the pipeline is not concerned)", Err: syscall.ENOSPC,
			Remedy: "free space on the disk of " + filepath.Dir(path) + ", or name a file on another disk"}
	}
	var judged *fault.Error
	if errors.As(err, &judged) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", op, err)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err, Remedy: "name a file in a folder that is there and that the user of the pipeline may write to"}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// mayReplace refuses a name at which something else than an older snapshot is.
func (w *Writer) mayReplace(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return fault.Corrupted("the snapshot's name %s is not absolute", path)
	}
	for _, own := range []string{"", ".wal", ".lock", ".sock", ".tmp"} {
		if path == w.cfg.Path+own {
			return fault.Badly("%s is the pipeline's own: name another file for the snapshot", path)
		}
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return w.explainSnapshot(path, err)
	}
	notOurs := fault.Refuse("name another file, or remove that one", "%s is there and is not a snapshot of tailrace", path)
	if live, err := os.Stat(w.cfg.Path); err != nil || !info.Mode().IsRegular() || os.SameFile(live, info) {
		return notOurs
	}
	db, err := openInstance(path, true, map[string]string{"memory_limit": stripMemory, "threads": "1"})
	if isBusy(err) {
		return fault.Refuse("close it there, or name another file", "another program has %s open for writing", path)
	}
	if err != nil {
		return notOurs
	}
	defer db.close()
	c, err := db.connect()
	if err != nil {
		return err
	}
	defer c.close()
	if is, err := isSnapshot(ctx, c); err != nil || !is {
		return errors.Join(notOurs, err)
	}
	return nil
}

func isSnapshot(ctx context.Context, c *conn) (bool, error) {
	n, err := c.number(ctx, "SELECT count(*) FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = $1 AND table_name = $2", bookSchema, snapshotTable)
	return n > 0, err
}

// refuseSnapshot keeps a pipeline from writing into a snapshot; mu is held.
func (w *Writer) refuseSnapshot(ctx context.Context) error {
	is, err := isSnapshot(ctx, w.book)
	if err == nil && is {
		err = fault.Refuse("let destination.dsn name the pipeline's own file; to make a destination of this one, DROP SCHEMA "+bookSchema+" CASCADE in it, and start with --overwrite",
			"%s is a snapshot that `tailrace snapshot` wrote, not a destination", w.cfg.Path)
	}
	return w.explain("look whether the file is a snapshot", err)
}

// copySettled copies the file as a checkpoint leaves it, and says for how long no batch
// could be written.
func (w *Writer) copySettled(ctx context.Context, to string) (held time.Duration, err error) {
	c, err := w.reader(ctx)
	if err != nil {
		return 0, err
	}
	defer c.close()
	defer func() {
		err = errors.Join(err, w.explain("allow checkpoints again", w.setThreshold(context.Background(), c)))
	}()
	if held, err = w.settle(ctx, c); err != nil {
		return held, err
	}
	fault.KillPoint("snapshot settled")
	return held, w.copyFile(ctx, to)
}

// settle makes a checkpoint after which none will run.
func (w *Writer) settle(ctx context.Context, c *conn) (held time.Duration, err error) {
	deadline := time.Now().Add(settleMost)
	select { // before the batches' turn: they need not wait for it
	case w.staging <- struct{}{}:
		defer func() { <-w.staging }()
	case <-ctx.Done():
		return held, ctx.Err()
	}
	for {
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			return held, ctx.Err()
		}
		began := time.Now()
		_, err := c.exec(ctx, "SET checkpoint_threshold = '"+neverCheckpoint+"'")
		if err == nil {
			_, err = c.exec(ctx, "CHECKPOINT")
		}
		<-w.turn
		held += time.Since(began)
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "Cannot CHECKPOINT") {
			return held, w.explain("checkpoint for a snapshot", err)
		}
		if time.Now().After(deadline) {
			return held, fault.Retry(nil, "something else is being written all the time (a table's first copy?): no moment for a snapshot within %s", settleMost)
		}
		select {
		case <-time.After(settleStep):
		case <-ctx.Done():
			return held, ctx.Err()
		}
	}
}

func (w *Writer) copyFile(ctx context.Context, to string) (err error) {
	from, err := os.Open(w.cfg.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(to), &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * int64(disk.Bsize); free < info.Size()+minFree {
		return fmt.Errorf("it needs %d MiB, %d MiB are free: %w", (info.Size()+minFree)>>20, free>>20, syscall.ENOSPC)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// What the file grows by meanwhile is not of the checkpoint.
	for left := info.Size(); left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(out, from, min(left, copyStep))
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// copyStep is how much is copied between looks at whether to stop: 64 MiB, a fraction
// of a second.
const copyStep = 64 << 20

// strip replaces the bookkeeping in the copy by what it says of the mark.
func (w *Writer) strip(ctx context.Context, path string, taken *sink.SnapshotTaken) error {
	db, err := openInstance(path, false, map[string]string{"memory_limit": stripMemory, "threads": "1", "temp_directory": path + ".spill"})
	if err != nil {
		return err
	}
	defer db.close()
	c, err := db.connect()
	if err != nil {
		return err
	}
	defer c.close()
	var names []string
	err = c.each(ctx, func(cells []*string) error { names = append(names, *cells[0]); return nil },
		"SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = $1", bookSchema)
	if err != nil {
		return err
	}
	if !slices.Contains(names, "positions") {
		return fault.Corrupted("the copy has no mark")
	}
	book := quote(bookSchema) + "."
	statements := []string{
		"CREATE TABLE " + book + snapshotTable + " AS SELECT pipeline, position, commit_time, now() AS taken FROM " + book + "positions",
		"CREATE TABLE " + book + snapshotTables + " AS SELECT pipeline, target_schema, target_table, source_schema, source_table, CASE phase WHEN 'adopting' THEN 'catching' ELSE phase END AS phase, since, reason FROM " + book + "tables",
	}
	for _, n := range names {
		statements = append(statements, "DROP TABLE "+book+quote(n))
	}
	err = inTransaction(ctx, c, func() error {
		for _, s := range statements {
			if _, err := c.exec(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = c.each(ctx, func(cells []*string) error { taken.Position, _, _ = strings.Cut(*cells[0], " "); return nil },
		"SELECT position FROM "+book+snapshotTable+" WHERE pipeline = $1", w.cfg.Pipeline)
	if err == nil {
		_, err = c.exec(ctx, "CHECKPOINT")
	}
	return err
}

// settleFile makes the finished file durable.
func settleFile(path string) (size int64, err error) {
	if _, err := os.Stat(path + ".wal"); err == nil {
		return 0, fault.Corrupted("%s was closed and has a write-ahead file still", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), f.Sync()
}

func syncFolder(dir string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

// removeUnfinished removes an unfinished snapshot and what the engine put beside it.
func removeUnfinished(made string) error {
	var failed error
	for _, name := range []string{made, made + ".wal"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return errors.Join(failed, os.RemoveAll(made+".spill"))
}
