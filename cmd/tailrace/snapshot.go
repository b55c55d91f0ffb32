package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/sink"
)

func (a *app) snapshotCommand() *cobra.Command {
	var limit time.Duration
	c := &cobra.Command{
		Use:   "snapshot [PATH]",
		Short: "Write a copy of the DuckDB file that stands at one mark, also while the daemon runs",
		Long: `snapshot writes NAME.snapshot.duckdb beside the file, or PATH, for other programs to
read. It stands at one mark, which it holds in _tailrace.snapshot, and has no other
bookkeeping. It takes the place of an older snapshot at once; whoever has that one
open keeps it until it opens the file again.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			ctx, stop := untilInterrupt(cmd.Context())
			defer stop()
			dst, err := env.openSink(ctx)
			if err != nil {
				return fmt.Errorf("open the destination: %w", err)
			}
			defer dst.Close(context.WithoutCancel(ctx))
			embedded, ok := dst.(sink.Embedded)
			if !ok {
				return fault.Badly("snapshots are of DuckDB files; of a server its own tool makes one (pg_dump, mysqldump)")
			}
			r := control.Request{Kind: kindSnapshot, Limit: limit}
			if len(args) > 0 {
				if r.Argument, err = filepath.Abs(args[0]); err != nil {
					return fault.Badly("the file name %s: %v", args[0], err)
				}
			}
			text, err := env.askOwner(ctx, embedded, r, queryWait, false, nil, func() (string, error) {
				return env.owning(ctx, dst, func() (string, error) {
					limited, cancel := context.WithTimeout(ctx, limit)
					defer cancel()
					return snapshotKind(embedded).Do(limited, r, nil)
				})
			})
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, text)
			return nil
		},
	}
	c.Flags().DurationVar(&limit, "timeout", 10*time.Minute, "how long it may take")
	return a.configured(c)
}

func snapshotKind(dst sink.Embedded) control.Kind {
	return control.Kind{Name: kindSnapshot,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			s, err := dst.Snapshot(ctx, r.Argument)
			return fmt.Sprintf("%s at %s: %s in %.1f s, batches waited %.2f s", s.Path, s.Position, size(s.Bytes), s.Took.Seconds(), s.Held.Seconds()), err
		}}
}

// snapshotRetry is when a snapshot that failed is tried again, if not earlier.
const snapshotRetry = time.Minute

// snapshotEvery keeps the snapshot younger than every, as long as the mark moves.
func (e *environment) snapshotEvery(ctx context.Context, dst sink.Writer, embedded sink.Embedded, every time.Duration) {
	next := time.Duration(0)
	if info, err := os.Stat(embedded.SnapshotPath()); err == nil {
		next = max(0, every-time.Since(info.ModTime()))
	}
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		next = every
		if mark, err := dst.State(ctx); err == nil && mark.Position.String() == last {
			continue
		}
		s, err := embedded.Snapshot(ctx, "")
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			e.log.Warn("no snapshot; an older one stays", "error", err.Error())
			next = min(every, snapshotRetry)
		default:
			last = s.Position
			e.log.Info("snapshot", "path", s.Path, "position", s.Position, "size", size(s.Bytes), "seconds", fmt.Sprintf("%.1f", s.Took.Seconds()),
				"batches_waited", fmt.Sprintf("%.2f", s.Held.Seconds()))
		}
	}
}
