package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
)

// refreshRequest is what the daemon is asked for.
type refreshRequest struct {
	Flow  string `json:"flow"`
	Full  bool   `json:"full,omitempty"`
	Force bool   `json:"force,omitempty"`
}

func (a *app) refreshCommand() *cobra.Command {
	var r refreshRequest
	var rebuild bool
	var wait time.Duration
	c := &cobra.Command{
		Use:   "refresh --flow F",
		Short: "Take a flow's snapshot now; with --full make its target anew",
		Long: `refresh brings one flow up to date now: a snapshot flow takes its snapshots out of
turn. With --full the flow's target is made anew, with all flows into it and what is
remembered of their events; that is refused where what filled it can no longer be read
(files that were taken and are gone, snapshots that a history was made of), unless
--force. A running daemon is asked to do it.

--rebuild-history is for a history whose tracked columns were changed in the
configuration: it is decided anew from what is remembered of all its events, in one
transaction. No daemon may be running: it would refuse the changed flow.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case r.Flow == "":
				return fault.Badly("refresh needs --flow F, the flow's name or its target's")
			case rebuild && (r.Full || r.Force):
				return fault.Badly("--rebuild-history goes with neither --full nor --force")
			case r.Force && !r.Full:
				return fault.Badly("--force goes with --full")
			case rebuild:
				return a.rebuildHistory(cmd, r.Flow)
			}
			argument, err := json.Marshal(r)
			if err != nil {
				return err
			}
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindRefresh, Argument: string(argument)}, wait, func(ctx context.Context, cfg pipeline.Config) (string, error) {
				done, err := pipeline.Refresh(ctx, cfg, r.Flow, r.Full, r.Force)
				return refreshed(done), err
			})
			if err == nil {
				fmt.Fprintln(a.out, text)
			}
			return err
		},
	}
	c.Flags().StringVar(&r.Flow, "flow", "", "the flow to bring up to date, by its name or its target's")
	c.Flags().BoolVar(&r.Full, "full", false, "make the flow's target anew, with all flows into it")
	c.Flags().BoolVar(&r.Force, "force", false, "with --full: also where what filled it is partly gone")
	c.Flags().BoolVar(&rebuild, "rebuild-history", false, "decide a history anew after a change of its tracked columns")
	c.Flags().DurationVar(&wait, "timeout", 24*time.Hour, "how long to wait for the daemon; then exit 4, and it goes on")
	return a.configured(c)
}

func (a *app) rebuildHistory(cmd *cobra.Command, flow string) error {
	env, err := a.load()
	if err != nil {
		return err
	}
	cfg, err := env.pipeline(newProgress(a.errs, env.log))
	if err != nil {
		return err
	}
	ctx, done := untilSignal(cmd.Context(), env.log)
	defer done()
	r, err := pipeline.RebuildHistory(ctx, cfg, flow)
	if err == nil {
		fmt.Fprintf(a.out, "history of %s rebuilt: %d keys, %d versions removed, %d begun, in %.1f s\n", r.Target, r.Keys, r.Removed, r.Begun, r.Took.Seconds())
	}
	return err
}

func refreshKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindRefresh, Again: true, AtOnce: 1,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			var asked refreshRequest
			if err := understand([]byte(r.Argument), &asked); err != nil {
				return "", err
			}
			done, err := hold.Refresh(ctx, asked.Flow, asked.Full, asked.Force)
			return refreshed(done), err
		}}
}

func refreshed(r pipeline.Refreshed) string {
	text := fmt.Sprintf("%s is up to date", r.Target)
	if r.Full {
		text = fmt.Sprintf("%s was made anew", r.Target)
	}
	if r.Version != "" {
		text += ", with the snapshot at version " + r.Version
	}
	return text + fmt.Sprintf(", in %.1f s", r.Took.Seconds())
}
