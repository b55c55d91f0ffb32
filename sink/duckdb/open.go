//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	engine "github.com/duckdb/duckdb-go/v2"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Config says how a DuckDB file is opened.
type Config struct {
	Path     string // the database file; created by Own where missing
	Pipeline string // names the bookkeeping of one pipeline

	// MemoryLimit bounds the engine's memory, in its own spelling; default 512MB
	// (256MB suffices without a primary key). The process needs 100 to 200 MB more.
	MemoryLimit string

	// Threads of the engine; default the number of CPUs, at most 4: batches are
	// small, and more threads only wait for each other.
	Threads int

	// PrimaryKey asks for a primary key on targets that we create. It costs 15 to
	// 20 % of inserts, half the speed of updates, and memory that cannot be
	// spilled; uniqueness is kept without it.
	PrimaryKey bool

	// CheckpointThreshold is the size of the write-ahead file that makes a commit
	// checkpoint; default 64MB: commits then stall for at most about half a second
	// and a restart after a crash replays for at most about as long.
	CheckpointThreshold string

	TempDir string       // spill files, emptied at start; default PATH.tmp
	Logger  *slog.Logger // default: discard
}

// Writer writes one pipeline's targets and bookkeeping into a DuckDB file. It
// implements sink.Writer.
//
// One process owns the file from Own to Close (see lockFile); until Own, and for
// processes that never own it, the file is opened read-only on demand. Inside
// the owner everything shares one engine instance: the apply connection holds
// the batch's transaction and its temporary stages, the book connection serves
// the mark, and every Load, Scan or Show has a connection of its own.
type Writer struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex // guards the fields below and the book connection
	db     *instance  // nil until opened
	guest  bool       // db is another Writer's, which outlives this one
	write  bool       // opened as owner
	lock   *lockFile
	book   *conn
	epoch  int64
	shapes map[*scd.Target]*shape
	known  *catalogue // nil: to be read

	planned map[string]change.Name // targets that Plan was asked for, by folded name

	catalog string // the engine's name for the file; set with db

	marking    sync.Mutex // held while a transaction that writes the mark commits; guards commitTime
	commitTime time.Time  // of the mark as committed

	changes sync.Map     // change.Name -> int64: number of the newest Load or Create of a target
	changed atomic.Int64 // the newest such number

	turn     chan struct{} // holds a token while a batch is being written, or the state for a snapshot is made
	staging  chan struct{} // holds a token while a stager's transaction is open, or the state for a snapshot is made
	snapping sync.Mutex    // one snapshot at a time
	queries  queries       // that people asked

	window   atomic.Pointer[window] // under which is kept what is there; nil: nothing is
	pointing sync.RWMutex           // written while a point is made or goes; read by what notes a window's number and is no batch, until it has committed

	apply   applier
	applied atomic.Pointer[change.Position]
	broken  error // why Apply refuses; touched by Apply's goroutine only
}

var _ sink.Writer = (*Writer)(nil)

// New makes a Writer; it opens nothing.
func New(cfg Config) (*Writer, error) {
	if cfg.Path == "" {
		return nil, fault.Badly("the DuckDB destination needs a file name")
	}
	if cfg.Pipeline == "" {
		return nil, fault.Badly("the DuckDB destination needs a pipeline name")
	}
	if cfg.MemoryLimit == "" {
		cfg.MemoryLimit = "512MB"
	}
	if cfg.Threads <= 0 {
		cfg.Threads = min(runtime.NumCPU(), 4)
	}
	if cfg.CheckpointThreshold == "" {
		cfg.CheckpointThreshold = "64MB"
	}
	if cfg.TempDir == "" {
		cfg.TempDir = cfg.Path + ".tmp"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	path, err := filepath.Abs(cfg.Path) // one name for one file, whatever the folder
	if err != nil {
		return nil, fault.Badly("the file name %s: %v", cfg.Path, err)
	}
	cfg.Path = path
	return &Writer{cfg: cfg, log: cfg.Logger, turn: make(chan struct{}, 1), staging: make(chan struct{}, 1)}, nil
}

func (w *Writer) lockPath() string { return w.cfg.Path + ".lock" }

// settings are what every instance of ours is opened with. The engine may not
// load anything over the network, and one time zone keeps every cast stable.
func (w *Writer) settings() map[string]string {
	return map[string]string{
		"memory_limit":                 w.cfg.MemoryLimit,
		"threads":                      strconv.Itoa(w.cfg.Threads),
		"checkpoint_threshold":         w.cfg.CheckpointThreshold,
		"temp_directory":               w.cfg.TempDir,
		"preserve_insertion_order":     "false",
		"autoinstall_known_extensions": "false",
		"autoload_known_extensions":    "false",
		"allow_community_extensions":   "false",
	}
}

// busyWait is how long opening the file is tried while another process holds the
// engine's lock: a reader that is about to finish. It leaves room within the two
// seconds that Own may take.
const busyWait = 1500 * time.Millisecond

// open opens the instance and its book connection; mu is held.
func (w *Writer) open(ctx context.Context, write bool) error {
	settings := w.settings()
	if !write {
		delete(settings, "temp_directory") // a reader must not need a writable folder
	}
	deadline := time.Now().Add(busyWait)
	for {
		db, err := openInstance(w.cfg.Path, !write, settings)
		if err == nil {
			w.db, w.write = db, write
			break
		}
		if !isBusy(err) || time.Now().After(deadline) {
			return w.explain("open "+w.cfg.Path, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	book, err := w.connect()
	if err != nil {
		w.shut()
		return err
	}
	w.book = book
	// Nothing of ours is read or written through the engine but the file itself, so a
	// person's query shall not either. It holds for the instance and cannot be undone.
	if _, err := w.book.exec(ctx, "SET enable_external_access = false"); err != nil {
		w.shut()
		return w.explain("shut the database off from other files", err)
	}
	err = w.book.each(ctx, func(cells []*string) error {
		w.catalog = *cells[0]
		return nil
	}, "SELECT current_database()")
	if err != nil {
		w.shut()
		return w.explain("read the database's name", err)
	}
	return nil
}

// connect makes a connection with our session settings.
func (w *Writer) connect() (*conn, error) {
	c, err := w.db.connect()
	if err != nil {
		return nil, err
	}
	if _, err := c.exec(context.Background(), "SET TimeZone = 'UTC'"); err != nil {
		c.close()
		return nil, w.explain("set up a connection", err)
	}
	return c, nil
}

// shut closes the instance; mu is held.
func (w *Writer) shut() {
	w.shapes, w.known = nil, nil
	if w.book != nil {
		w.book.close()
		w.book = nil
	}
	if w.db != nil && !w.guest {
		w.db.close()
	}
	w.db, w.guest = nil, false
}

// ready makes sure that an instance is open for reading. It returns false where
// there is no file.
func (w *Writer) ready(ctx context.Context) (exists bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readyLocked(ctx)
}

func (w *Writer) readyLocked(ctx context.Context) (exists bool, err error) {
	if w.db != nil {
		return true, nil
	}
	if _, err := os.Stat(w.cfg.Path); errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, w.explain("look for "+w.cfg.Path, err)
	}
	lock, err := shareLock(w.lockPath())
	if errors.Is(err, errHeld) {
		return false, w.ownedBy()
	}
	if err != nil {
		return false, w.explain("take the reader's lock", err)
	}
	if err := w.open(ctx, false); err != nil {
		lock.release()
		return false, err
	}
	w.lock = lock
	return true, nil
}

// reader gives a connection of its own for a long read; nil where there is no
// file.
func (w *Writer) reader(ctx context.Context) (*conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if exists, err := w.readyLocked(ctx); err != nil || !exists {
		return nil, err
	}
	return w.connect()
}

// Own takes the file's lock, opens the file and takes the pipeline over.
// A dead owner's lock is free the moment it dies, so wait has nothing to wait
// for beyond a reader that is about to finish.
func (w *Writer) Own(ctx context.Context, me checkpoint.Owner, wait time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.write {
		return fault.Corrupted("own %s: it is owned already", w.cfg.Path)
	}
	w.shut() // a read-only instance of our own
	if w.lock != nil {
		w.lock.release()
		w.lock = nil
	}
	if err := os.MkdirAll(filepath.Dir(w.cfg.Path), 0o755); err != nil {
		return w.explain("make the folder of "+w.cfg.Path, err)
	}
	lock, err := w.takeLock(ctx)
	if err != nil {
		return err
	}
	fail := func(err error) error {
		w.shut()
		w.write = false
		lock.release()
		return err
	}
	if err := lock.describe(me); err != nil {
		return fail(w.explain("write "+w.lockPath(), err))
	}
	if err := emptyTempDir(w.cfg.TempDir); err != nil {
		return fail(w.explain("empty the folder for spill files", err))
	}
	if err := w.open(ctx, true); err != nil {
		return fail(err)
	}
	if err := w.refuseSnapshot(ctx); err != nil {
		return fail(err)
	}
	if err := w.takeOver(ctx, me); err != nil {
		return fail(err)
	}
	w.lock = lock
	w.log.Info("own the DuckDB file", "path", w.cfg.Path, "epoch", w.epoch)
	return nil
}

func (w *Writer) takeLock(ctx context.Context) (*lockFile, error) {
	deadline := time.Now().Add(busyWait)
	for {
		lock, err := acquireLock(w.lockPath())
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, errHeld) {
			return nil, w.explain("take the lock "+w.lockPath(), err)
		}
		if time.Now().After(deadline) {
			return nil, w.heldBy()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Close gives ownership up and closes the file, which checkpoints it.
func (w *Writer) Close(ctx context.Context) error {
	w.abandon()
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if w.write && w.db != nil {
		err = w.forgetOwner(ctx)
	}
	w.shut()
	if w.lock != nil {
		w.lock.release()
		w.lock = nil
	}
	w.write = false
	return err
}

// isBusy: another process has the file open.
func isBusy(err error) bool {
	var e *engine.Error
	return errors.As(err, &e) && e.Type == engine.ErrorTypeIO && strings.Contains(e.Msg, "Could not set lock on file")
}

// outOfMemory: the engine has reached its memory limit.
func outOfMemory(err error) bool {
	var e *engine.Error
	if errors.As(err, &e) && e.Type == engine.ErrorTypeOutOfMemory {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "failed to pin block") || strings.Contains(text, "failed to allocate") || strings.Contains(text, "could not allocate block")
}

// explain judges an engine's or operating system's error and gives it a remedy.
// Messages that may quote values are withheld.
func (w *Writer) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	var judged *fault.Error
	if errors.As(err, &judged) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", op, err)
	}
	refuse := func(kind fault.Kind, cause error, remedy string) error {
		return &fault.Error{Kind: kind, Op: op, Err: cause, Remedy: remedy}
	}
	text := err.Error()
	var e *engine.Error
	isEngine := errors.As(err, &e)
	switch {
	case errors.Is(err, syscall.ENOSPC), strings.Contains(text, "No space left on device"), strings.Contains(text, "Disk quota exceeded"):
		return refuse(fault.Operator, err, fmt.Sprintf("free space on the disk of %s (and of %s), then start again: it goes on from its mark", w.cfg.Path, w.cfg.TempDir))
	case errors.Is(err, os.ErrPermission), strings.Contains(text, "Permission denied"), strings.Contains(text, "Read-only file system"):
		return refuse(fault.Operator, err, fmt.Sprintf("give this user the right to write %s and its folder", w.cfg.Path))
	case errors.Is(err, syscall.ENOTDIR), strings.Contains(text, "Not a directory"), strings.Contains(text, "Is a directory"):
		return refuse(fault.Operator, err, "let destination.dsn name a file in a folder, existing or not")
	case isBusy(err):
		return refuse(fault.Operator, err, "another program has the file open (its PID is in the message): close it there; one process owns a DuckDB file")
	case outOfMemory(err) && w.queries.lately():
		return refuse(fault.Transient, err, "")
	case outOfMemory(err):
		return refuse(fault.Operator, err, fmt.Sprintf("the engine's memory limit of %s is too small for this batch: raise destination.duckdb.memory_limit, or do without a primary key (an index cannot be spilled)", w.cfg.MemoryLimit))
	case strings.Contains(text, "not a valid DuckDB database file"), strings.Contains(text, "Corrupt database"), strings.Contains(text, "checksum"), isEngine && e.Type == engine.ErrorTypeSerialization:
		return refuse(fault.Operator, err, fmt.Sprintf("%s is not an intact DuckDB file: restore it from a backup, or move it (and its .wal) away and start again to copy everything anew", w.cfg.Path))
	case strings.Contains(text, "was created with a newer version"), strings.Contains(text, "trying to read a database file with version"):
		return refuse(fault.Operator, err, "the file was written by another version of DuckDB: use that version, or move the file away and copy anew")
	case isEngine && (e.Type == engine.ErrorTypeConstraint || e.Type == engine.ErrorTypeConversion || e.Type == engine.ErrorTypeInvalidInput || e.Type == engine.ErrorTypeOutOfRange):
		return &fault.Error{Kind: fault.Operator, Op: op, Err: errors.New(withheld(e)),
			Remedy: "compare the target's definition with the source table's; copy the table again (tailrace backfill --table) if it was changed by hand"}
	case isEngine && e.Type == engine.ErrorTypeTransaction && strings.Contains(text, "onflict"):
		return refuse(fault.Transient, err, "")
	case isEngine && e.Type == engine.ErrorTypeFatal:
		return refuse(fault.Transient, err, "")
	}
	return fmt.Errorf("%s: %w", op, err)
}

// withheld names the class of an engine's error without its text, which quotes
// values.
func withheld(e *engine.Error) string {
	switch e.Type {
	case engine.ErrorTypeConstraint:
		return "the target refuses a row by a constraint (the engine's text is withheld: it quotes values)"
	case engine.ErrorTypeConversion:
		return "a value does not convert (the engine's text is withheld: it quotes values)"
	}
	return "the engine refuses a value (its text is withheld: it may quote values)"
}
