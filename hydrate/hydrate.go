// Package hydrate is the ONCE flow: tables become rows of one consistent
// snapshot, several tables and parts of tables at once, the longest first. It moves
// bytes from a reader pinned to the snapshot to a loader and never looks into them.
package hydrate

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Table is one table to copy. Read and Load run at the same time, joined by a
// pipe; Load must commit only after it has seen the end of the stream, and finds
// an error instead of the end if Read failed.
type Table struct {
	Name  string // of the target, for progress and messages
	Rows  int64  // estimate, 0 = unknown
	Bytes int64  // estimate of the size on the source, 0 = unknown
	Read  func(ctx context.Context, w io.Writer) (int64, error)
	Load  func(ctx context.Context, r io.Reader) (int64, error)

	// Parts, if there are any, take the place of Read and Load: each is copied by
	// itself, in any order, and Finish ends the table once all of them are loaded.
	Parts  []Part
	Finish func(ctx context.Context) error
}

// Part is one part of a table; Read and Load are as a Table's.
type Part struct {
	Bytes int64
	Read  func(ctx context.Context, w io.Writer) (int64, error)
	Load  func(ctx context.Context, r io.Reader) (int64, error)
}

// finishing is the share of a table's copy that what follows its parts takes, which
// nobody else can help with: the building of its key takes an eighth.
const finishing = 8

// Progress is told what happens. Calls come from several goroutines.
type Progress interface {
	// Begin tells how many tables there are and the sum of their estimated sizes.
	Begin(tables int, bytes int64)
	// Moved tells that n more bytes of a table went through.
	Moved(table string, n int)
	// Done tells that a table is committed.
	Done(table string, rows int64, took time.Duration)
	// End tells that nothing more follows.
	End()
}

// pipeBuffer batches the source's one-row writes before they cross to the
// loader's goroutine: 256 KiB is about a thousand rows, so the hand-over costs
// nothing beside the copy, and four workers hold 1 MiB.
const pipeBuffer = 256 << 10

// job is what one worker does without a pause: a whole table, or a part of one.
type job struct {
	table *running
	Part
	last int64 // the longest time that begins with this job, in bytes: its own and what has to wait for it
}

// running is a table on its way.
type running struct {
	*Table
	began      sync.Once
	start      time.Time
	rows, left atomic.Int64
}

// jobs cuts tables into jobs, in the order in which they begin: what keeps the others
// waiting longest comes first, so that the workers end about together. A part is
// short, but the end of its table follows all of them.
func jobs(tables []Table) []job {
	var out []job
	for i := range tables {
		t := &running{Table: &tables[i]}
		parts := t.Parts
		if len(parts) == 0 {
			parts = []Part{{t.Bytes, t.Read, t.Load}}
		}
		t.left.Store(int64(len(parts)))
		for _, p := range parts {
			j := job{table: t, Part: p, last: p.Bytes}
			if t.Finish != nil {
				j.last += t.Bytes / finishing
			}
			out = append(out, j)
		}
	}
	slices.SortStableFunc(out, func(a, b job) int { return cmp.Compare(b.last, a.last) })
	return out
}

// Run copies the tables with at most workers at once. The first failure stops the
// others; tables that are done stay done.
func Run(ctx context.Context, tables []Table, workers int, p Progress) error {
	tables = slices.Clone(tables)
	var total int64
	for _, t := range tables {
		total += t.Bytes
	}
	p.Begin(len(tables), total)
	defer p.End()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(workers, 1))
	for _, j := range jobs(tables) {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil // another table failed first; its error is the one to report
			}
			if err := j.run(ctx, p); err != nil {
				return fmt.Errorf("copy table %s: %w", j.table.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (j *job) run(ctx context.Context, p Progress) error {
	t := j.table
	t.began.Do(func() { t.start = time.Now() })
	rows, err := copyPart(ctx, t.Name, &j.Part, p)
	if err != nil {
		return err
	}
	rows = t.rows.Add(rows)
	if t.left.Add(-1) > 0 {
		return nil
	}
	if t.Finish != nil {
		if err := t.Finish(ctx); err != nil {
			return err
		}
	}
	p.Done(t.Name, rows, time.Since(t.start))
	return nil
}

func copyPart(ctx context.Context, name string, t *Part, p Progress) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	type result struct {
		rows int64
		err  error
	}
	read := make(chan result, 1)
	go func() {
		buffered := bufio.NewWriterSize(counted{pw, name, p}, pipeBuffer)
		rows, err := t.Read(ctx, buffered)
		if err == nil {
			err = buffered.Flush()
		}
		// nil closes with io.EOF: the loader may commit only on that.
		pw.CloseWithError(err)
		read <- result{rows, err}
	}()
	loaded, loadErr := t.Load(ctx, pr)
	if loadErr != nil {
		// Unblock the reader; its own error, if it had one first, explains more.
		pr.CloseWithError(errLoaderStopped)
		cancel()
	}
	r := <-read
	switch {
	case loadErr != nil:
		if r.err != nil && !errors.Is(r.err, errLoaderStopped) && !errors.Is(r.err, context.Canceled) {
			return 0, r.err
		}
		return 0, loadErr
	case r.err != nil:
		return 0, r.err
	case loaded != r.rows:
		return 0, fmt.Errorf("the source sent %d rows, the destination took %d", r.rows, loaded)
	}
	return loaded, nil
}

// errLoaderStopped ends the reader when the loader gave up; never reported itself.
var errLoaderStopped = errors.New("the loader stopped")

// counted reports how much passes.
type counted struct {
	w     io.Writer
	table string
	p     Progress
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.p.Moved(c.table, n)
	return n, err
}

// Silent is a Progress that counts and says nothing.
type Silent struct{ Rows atomic.Int64 }

func (s *Silent) Begin(int, int64)                           {}
func (s *Silent) Moved(string, int)                          {}
func (s *Silent) Done(_ string, rows int64, _ time.Duration) { s.Rows.Add(rows) }
func (s *Silent) End()                                       {}
