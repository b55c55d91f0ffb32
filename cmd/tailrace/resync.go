package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/sink"
)

func (a *app) resyncCommand() *cobra.Command {
	var table string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "resync --table T",
		Short: "Copy one table again without a moment at which its target is empty",
		Long: `resync copies the source table of a target again into a stage, and then makes the
target equal to it in one transaction: no reader sees it empty or half filled. A
parked target becomes live. Of a history it is one step: versions that differ end and
begin anew, and what was not seen in between is recorded as a gap, which status shows.
A running daemon is asked to do it, and copies beside its stream: its targets wait only
for that last transaction. Without one this process owns the pipeline while it copies.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if table == "" {
				return fault.Badly("resync needs --table TARGET")
			}
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindResync, Argument: table}, wait, func(ctx context.Context, cfg pipeline.Config) (string, error) {
				r, err := pipeline.Resync(ctx, cfg, table)
				return resynced(r), err
			})
			if err == nil {
				fmt.Fprintln(a.out, text)
			}
			return err
		},
	}
	c.Flags().StringVar(&table, "table", "", "the target to copy again")
	c.Flags().DurationVar(&wait, "timeout", 24*time.Hour, "how long to wait for the daemon; then exit 4, and it goes on")
	return a.configured(c)
}

// daemonOrHere has the daemon do something that needs the pipeline, or does it in this process if there is none.
func (a *app) daemonOrHere(cmd *cobra.Command, r control.Request, wait time.Duration, here func(context.Context, pipeline.Config) (string, error)) (string, error) {
	env, err := a.load()
	if err != nil {
		return "", err
	}
	p := newProgress(a.errs, env.log)
	cfg, err := env.pipeline(p)
	if err != nil {
		return "", err
	}
	ctx, stop := untilInterrupt(cmd.Context())
	defer stop()
	dst, err := env.openSink(ctx)
	if err != nil {
		return "", fmt.Errorf("open the destination: %w", err)
	}
	defer dst.Close(context.WithoutCancel(ctx))
	r.By, r.Report = control.Me(), p.hearText
	defer p.End()
	inProcess := func() (string, error) {
		ctx, done := untilSignal(cmd.Context(), env.log)
		defer done()
		return here(ctx, cfg)
	}
	switch dst := dst.(type) {
	case sink.Requests:
		text, err := control.AskByRow(ctx, dst, r, wait)
		if errors.Is(err, control.ErrNobody) {
			return inProcess()
		}
		return text, err
	case sink.Embedded:
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		text, err := env.askOwner(limited, dst, r, wait, true, nil, inProcess)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fault.Retry(nil, "%s: the daemon has not finished within %s; it goes on", r.Kind, wait)
		}
		return text, err
	}
	return inProcess()
}

func resyncKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindResync, Again: true, AtOnce: 1,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			done, err := hold.Resync(ctx, r.Argument, teller(r))
			return resynced(done), err
		}}
}

func resynced(r pipeline.Resynced) string {
	what := fmt.Sprintf("%d rows removed, %d written", r.Removed, r.Written)
	if r.Type2 {
		what = fmt.Sprintf("%d versions ended, %d began", r.Removed, r.Written)
	}
	parked := ""
	if r.Parked {
		parked = "; it was parked and is live"
	}
	return fmt.Sprintf("%s copied again at %s: %d rows, %s, in %.1f s, of which the stream waited %.1f s%s", r.Target, r.Position, r.Rows, what, r.Took.Seconds(), r.Waited.Seconds(), parked)
}
