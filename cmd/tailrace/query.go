package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/sink"
)

func (a *app) queryCommand() *cobra.Command {
	var format string
	var limit time.Duration
	c := &cobra.Command{
		Use:   "query SQL",
		Short: "Run one SELECT in the DuckDB file, also while the daemon runs",
		Long: `query prints the rows of one SELECT (also FROM, VALUES, SHOW, DESCRIBE, SUMMARIZE).
While a daemon has the file open, the daemon runs it, in a read-only transaction
beside the batches, at most two at once; all live tables are seen at one mark.
Without a daemon query opens the file itself, read-only. Other files and the network
cannot be read from it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "table" && format != "csv" && format != "json" {
				return fault.Badly("--format is table, csv or json, not %q", format)
			}
			if limit <= 0 || limit > queryMost {
				return fault.Badly("--timeout is above 0 and at most %s", queryMost)
			}
			env, err := a.load()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			dst, err := env.openSink(ctx)
			if err != nil {
				return fmt.Errorf("open the destination: %w", err)
			}
			defer dst.Close(ctx)
			embedded, ok := dst.(sink.Embedded)
			if !ok {
				return fault.Badly("a server answers everybody: ask it with a client of its own (psql, mysql). `tailrace query` is for DuckDB files")
			}
			p := newPrinter(format, a.out)
			r := control.Request{Kind: kindQuery, Argument: args[0], Limit: limit}
			_, err = env.askOwner(ctx, embedded, r, queryWait, false, p.row, func() (string, error) {
				release := func() error { return dst.Close(ctx) }
				return control.Here(ctx, control.NewDesk(queryKind(embedded)), r, env.spoolFolder(embedded), release, p.row)
			})
			return errors.Join(err, p.end())
		},
	}
	c.Flags().StringVar(&format, "format", "table", "table, csv (RFC 4180; NULL is empty, an empty string is \"\") or json (one object a line)")
	c.Flags().DurationVar(&limit, "timeout", 30*time.Second, "how long the statement may take; at most 1h")
	return a.configured(c)
}

const (
	// An open transaction makes the destination keep old rows.
	queryMost = time.Hour
	// How long a daemon that starts or begins anew is waited for.
	queryWait = 10 * time.Second
)

func queryKind(dst sink.Embedded) control.Kind {
	return control.Kind{Name: kindQuery, Ends: true, AtOnce: queriesAtOnce,
		Do: func(ctx context.Context, r control.Request, rows control.Rows) (string, error) {
			return "", dst.Query(ctx, r.Argument, rows)
		}}
}
