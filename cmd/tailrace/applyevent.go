package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
)

func (a *app) applyEventCommand() *cobra.Command {
	var asked applyRequest
	var wait time.Duration
	c := &cobra.Command{
		Use:   "apply-event --flow F [FILE]",
		Short: "Apply events that a person wrote to a target with sequence_by",
		Long: `apply-event reads events of a flow with sequence_by, one JSON object a line with the
columns of its source, sequence columns included, from FILE or the standard input, and
applies them in one transaction as the flow says. So a target is edited without what is
remembered of it becoming untrue. A running daemon is asked to do it; without one this
process owns the pipeline meanwhile.

At an equal sequence such an event stands behind all that was applied before it, and
before what the source's log says later. An event that cannot take its place, or that
an expectation drops, is handled as the flow says, and named by its line; the exit code
is 1. If a line cannot be read, nothing is applied.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if asked.Flow == "" {
				return fault.Badly("apply-event needs --flow FLOW: its name or its target")
			}
			var err error
			if asked.Lines, err = a.eventLines(args); err != nil {
				return err
			}
			argument, err := json.Marshal(asked)
			if err != nil {
				return err
			}
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindApply, Argument: string(argument)}, wait, func(ctx context.Context, cfg pipeline.Config) (string, error) {
				return applied(pipeline.ApplyEvents(ctx, cfg, asked.Flow, asked.Lines))
			})
			if err != nil {
				return err
			}
			var out pipeline.AppliedEvents
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				return fmt.Errorf("read the daemon's answer (is it of another version?): %w", err)
			}
			return a.printApplied(&out)
		},
	}
	c.Flags().StringVar(&asked.Flow, "flow", "", "the flow: its name, or its target")
	c.Flags().DurationVar(&wait, "timeout", time.Minute, "how long to wait for the daemon; then exit 4")
	return a.configured(c)
}

// applyRequest is what a daemon is asked.
type applyRequest struct {
	Flow  string `json:"flow"`
	Lines string `json:"lines"`
}

// eventLines reads the events, no more than are applied at once.
func (a *app) eventLines(args []string) (string, error) {
	in := a.in
	if len(args) == 1 && args[0] != "-" {
		f, err := os.Open(args[0])
		if err != nil {
			return "", fault.Badly("open the events: %v", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, pipeline.EventsMost+1))
	if err != nil {
		return "", fault.Badly("read the events: %v", err)
	}
	if len(text) > pipeline.EventsMost {
		return "", fault.Badly("there are more than %s of events: apply them in parts", size(pipeline.EventsMost))
	}
	return string(text), nil
}

func applied(out pipeline.AppliedEvents, err error) (string, error) {
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(out)
	return string(text), err
}

// applyKind is not carried out again by the next daemon, which might fail in the same
// way: who asked hears that it has failed, and applied twice is as good as once.
func applyKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindApply, AtOnce: 1,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			var asked applyRequest
			if err := understand([]byte(r.Argument), &asked); err != nil {
				return "", err
			}
			return applied(hold.ApplyEvents(ctx, asked.Flow, asked.Lines))
		}}
}

func (a *app) printApplied(out *pipeline.AppliedEvents) error {
	for _, w := range out.Wrong {
		fmt.Fprintf(a.out, "line %d: %s\n", w.Line, oneLine(w.Reason))
	}
	if n := len(out.Wrong); n > 0 {
		fmt.Fprintf(a.out, "nothing was applied: %d lines are wrong\n", n)
		a.code = fault.ExitFindings
		return nil
	}
	for _, w := range out.Aside {
		fmt.Fprintf(a.out, "line %d is set aside: %s\n", w.Line, oneLine(w.Reason))
	}
	fmt.Fprintf(a.out, "%d events applied to %s, %d set aside\n", out.Events, out.Target, len(out.Aside))
	if len(out.Aside) > 0 {
		a.code = fault.ExitFindings
	}
	return nil
}
