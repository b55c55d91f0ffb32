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

func (a *app) verifyCommand() *cobra.Command {
	var tables []string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare source and destination at one position; exit 1 if they differ",
		Long: `verify takes a snapshot of the source, catches up exactly to its position, and
compares every row on both sides; of a history target its open versions, and that
the intervals of a key neither overlap nor are empty. The source may be written
meanwhile. The source of a target with sequence_by holds events, not rows: such a
target is compared with what the events that are remembered of it say that it holds.
A running daemon is asked: it cuts its stream at the snapshot's position, goes on, and
compares beside it. Without a daemon this process owns the pipeline while it compares.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			argument, err := json.Marshal(verifyRequest{tables})
			if err != nil {
				return err
			}
			var t tally
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindVerify, Argument: string(argument)}, wait, func(ctx context.Context, cfg pipeline.Config) (string, error) {
				err := pipeline.Verify(ctx, cfg, tables, func(r pipeline.Comparison) { a.printComparison(r, &t) })
				if err == nil && ctx.Err() != nil {
					err = fault.Refuse("run it again", "verify was stopped before it had compared everything")
				}
				return "", err
			})
			if err != nil {
				return err
			}
			if text != "" {
				var list []pipeline.Comparison
				if err := json.Unmarshal([]byte(text), &list); err != nil {
					return fmt.Errorf("read the daemon's answer (is it of another version?): %w", err)
				}
				for _, r := range list {
					a.printComparison(r, &t)
				}
			}
			fmt.Fprintf(a.out, "%d differences of %d rows\n", t.differences, t.rows)
			if t.differences > 0 || t.violations > 0 || t.skipped > 0 {
				a.code = fault.ExitFindings
			}
			return nil
		},
	}
	c.Flags().DurationVar(&wait, "timeout", 24*time.Hour, "how long to wait for the daemon; then exit 4")
	c.Flags().StringArrayVar(&tables, "table", nil, "compare this target (repeatable; default all)")
	return a.configured(c)
}

// verifyRequest is what a daemon is asked.
type verifyRequest struct {
	Tables []string `json:"tables,omitempty"` // empty: all
}

func verifyKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindVerify, Again: true, Ends: true, AtOnce: 1,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			var asked verifyRequest
			if err := json.Unmarshal([]byte(r.Argument), &asked); err != nil {
				return "", fault.Badly("the request is not understood: %v", err)
			}
			list, err := hold.Verify(ctx, asked.Tables)
			if err != nil {
				return "", err
			}
			text, err := json.Marshal(list)
			return string(text), err
		}}
}

// tally sums up comparisons.
type tally struct {
	rows, differences   int64
	violations, skipped int
}

func (a *app) printComparison(r pipeline.Comparison, t *tally) {
	t.rows += r.Rows
	t.differences += r.Differences
	t.violations += len(r.Violations)
	if r.Skipped != "" {
		t.skipped++
		fmt.Fprintf(a.out, "%s: not compared: %s\n", r.Target, r.Skipped)
		return
	}
	if r.Once {
		fmt.Fprintf(a.out, "%s: copied once, not followed: not compared\n", r.Target)
		return
	}
	atLeast, how := "", ""
	if r.Cut {
		atLeast = "at least "
	}
	if r.Events != "" {
		how = fmt.Sprintf(" (%s compared with the remembered events; %s: %d broken)", r.Events, r.Checked, len(r.Violations))
	}
	fmt.Fprintf(a.out, "%s: %s%d differences of %d rows%s\n", r.Target, atLeast, r.Differences, r.Rows, how)
	for _, e := range r.Examples {
		fmt.Fprintf(a.out, "  %s\n", e)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(a.out, "  %s\n", v)
	}
}
