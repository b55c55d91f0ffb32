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
	var o pipeline.Checking
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
compares beside it. Without a daemon this process owns the pipeline while it compares.

With --repair the rows that differ are read again at a position at which the stream
rests, and made equal to the source in one transaction of the destination; rows that
are equal are not touched. Of a history it is one step, and a gap that status shows.
Then the target is compared again. Exit 0: nothing differs any more.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Repair && len(o.Tables) == 0 {
				return fault.Badly("--repair writes to targets, so each must be named: --table TARGET (repeatable). See first what differs: tailrace verify")
			}
			argument, err := json.Marshal(o)
			if err != nil {
				return err
			}
			var list []pipeline.Comparison
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindVerify, Argument: string(argument)}, wait, func(ctx context.Context, cfg pipeline.Config) (string, error) {
				err := pipeline.Verify(ctx, cfg, o, func(r pipeline.Comparison) { list = append(list, r) })
				if err == nil && ctx.Err() != nil {
					err = fault.Refuse("run it again", "verify was stopped before it had compared everything")
				}
				return "", err
			})
			if err == nil && text != "" {
				if err := json.Unmarshal([]byte(text), &list); err != nil {
					return fmt.Errorf("read the daemon's answer (is it of another version?): %w", err)
				}
			}
			var t tally
			for _, r := range list {
				a.printComparison(r, &t)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%d differences of %d rows\n", t.differences, t.rows)
			if t.differences > 0 || t.violations > 0 || t.skipped > 0 {
				a.code = fault.ExitFindings
			}
			return nil
		},
	}
	c.Flags().DurationVar(&wait, "timeout", 24*time.Hour, "how long to wait for the daemon; then exit 4")
	c.Flags().StringArrayVar(&o.Tables, "table", nil, "compare this target (repeatable; default all)")
	c.Flags().BoolVar(&o.Repair, "repair", false, "make rows that differ equal to the source; needs --table")
	return a.configured(c)
}

func verifyKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindVerify, Again: true, Ends: true, AtOnce: 1,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			var asked pipeline.Checking
			if err := json.Unmarshal([]byte(r.Argument), &asked); err != nil {
				return "", fault.Badly("the request is not understood: %v", err)
			}
			list, err := hold.Verify(ctx, asked, teller(r))
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

// add counts what differs in the end.
func (t *tally) add(r pipeline.Comparison) {
	t.rows += r.Rows
	t.differences += r.Differences
	t.violations += len(r.Violations)
}

func (a *app) printComparison(r pipeline.Comparison, t *tally) {
	if fix := r.Repair; fix != nil && fix.Refused == "" {
		t.add(fix.After)
	} else {
		t.add(r)
	}
	if r.Skipped != "" {
		t.skipped++
		fmt.Fprintf(a.out, "%s: not compared: %s\n", r.Target, r.Skipped)
		return
	}
	if r.Once {
		fmt.Fprintf(a.out, "%s: copied once, not followed: not compared\n", r.Target)
		return
	}
	how := ""
	if r.Events != "" {
		how = fmt.Sprintf(" (%s compared with the remembered events; %s: %d broken)", r.Events, r.Checked, len(r.Violations))
	}
	a.printFound(r.Target.String(), r, how)
	switch {
	case r.Events == "" || r.Differences == 0:
	case r.Snapshots != "":
		fmt.Fprintf(a.out, "  a row that was edited by hand is not what its snapshots say. Make such changes at the source. To undo the edit, make the target anew: tailrace refresh --flow %q --full (of a history the past that its source does not have any more is lost then: --force)\n", r.Snapshots)
	default:
		fmt.Fprintf(a.out, "  a row that was edited by hand is not what its events say. To keep the edit, bring it in as an event: tailrace apply-event. To undo it, build the target anew: tailrace backfill --table %s --overwrite\n", r.Target)
	}
	if r.Repair != nil {
		a.printRepair(r.Target.String(), r.Repair)
	}
}

func (a *app) printFound(name string, r pipeline.Comparison, how string) {
	atLeast := ""
	if r.Cut {
		atLeast = "at least "
	}
	fmt.Fprintf(a.out, "%s: %s%d differences of %d rows%s\n", name, atLeast, r.Differences, r.Rows, how)
	for _, e := range r.Examples {
		fmt.Fprintf(a.out, "  %s\n", e)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(a.out, "  %s\n", v)
	}
}

func (a *app) printRepair(name string, r *pipeline.Repair) {
	if r.Refused != "" {
		fmt.Fprintf(a.out, "%s: not repaired: %s\n", name, r.Refused)
		return
	}
	what := fmt.Sprintf("%d written, %d removed", r.Written, r.Removed)
	if r.Type2 {
		what = fmt.Sprintf("%d versions began, %d ended", r.Written, r.Removed)
	}
	fmt.Fprintf(a.out, "%s: repaired: %s, at %s; compared again:\n", name, what, r.Position)
	a.printFound(name, r.After, "")
}
