// Package hydrate is the ONCE flow: tables become rows of one consistent
// snapshot, several tables at once, biggest first. It moves bytes from a reader
// pinned to the snapshot to a loader and never looks into them.
package hydrate

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
}

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

// Run copies the tables with at most workers at once. The first failure stops the
// others; tables that are done stay done.
func Run(ctx context.Context, tables []Table, workers int, p Progress) error {
	tables = slices.Clone(tables)
	slices.SortStableFunc(tables, func(a, b Table) int { return cmp.Compare(b.Bytes, a.Bytes) })
	var total int64
	for _, t := range tables {
		total += t.Bytes
	}
	p.Begin(len(tables), total)
	defer p.End()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(workers, 1))
	for _, t := range tables {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil // another table failed first; its error is the one to report
			}
			began := time.Now()
			rows, err := copyTable(ctx, t, p)
			if err != nil {
				return fmt.Errorf("copy table %s: %w", t.Name, err)
			}
			p.Done(t.Name, rows, time.Since(began))
			return nil
		})
	}
	return g.Wait()
}

func copyTable(ctx context.Context, t Table, p Progress) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	type result struct {
		rows int64
		err  error
	}
	read := make(chan result, 1)
	go func() {
		buffered := bufio.NewWriterSize(counted{pw, t.Name, p}, pipeBuffer)
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
