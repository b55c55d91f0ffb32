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

func (a *app) pauseCommand() *cobra.Command {
	return a.holding(kindPause, "Hold the pipeline: finish the batch, then read and write nothing until resume",
		`pause lets the running daemon finish, mark and confirm its batch, and then read and
write nothing until resume. It keeps the slot, so the source keeps its log: see
status. The pause outlives the daemon. Without a daemon the next one starts paused.`)
}

func (a *app) resumeCommand() *cobra.Command {
	return a.holding(kindResume, "Let a paused pipeline go on", "")
}

func (a *app) holding(kind, short, long string) *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use: kind, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			pauses, ok := dst.(sink.Pauses)
			if !ok {
				return fault.Badly("this destination cannot be paused")
			}
			text, err := env.hold(ctx, dst, pauses, kind, wait)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, text)
			return nil
		},
	}
	c.Flags().DurationVar(&wait, "timeout", time.Minute, "how long to wait for the daemon; then exit 4")
	return a.configured(c)
}

// hold has the daemon pause or resume; where there is none it writes that down.
func (e *environment) hold(ctx context.Context, dst sink.Writer, pauses sink.Pauses, kind string, wait time.Duration) (string, error) {
	r := control.Request{Kind: kind, By: control.Me()}
	p, text := sink.Pause{Since: time.Now(), By: r.By}, "paused: no daemon runs, the next one starts paused"
	if kind == kindResume {
		p, text = sink.Pause{}, "resumed: no daemon runs"
	}
	if book, ok := dst.(sink.Requests); ok {
		if err := e.mustHaveBegun(ctx, dst); err != nil {
			return "", err
		}
		said, err := control.AskByRow(ctx, book, r, wait)
		if !errors.Is(err, control.ErrNobody) {
			return said, err
		}
		// A daemon that starts this moment looks at the pause with its next heartbeat.
		return text, pauses.SetPause(ctx, p)
	}
	embedded, ok := dst.(sink.Embedded)
	if !ok {
		return "", fault.Badly("nobody can be asked through this destination")
	}
	return e.askOwner(ctx, embedded, r, wait, true, nil, func() (string, error) {
		return e.owning(ctx, dst, func() (string, error) { return text, pauses.SetPause(ctx, p) })
	})
}
