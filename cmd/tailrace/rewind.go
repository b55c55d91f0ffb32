package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
)

func (a *app) rewindCommand() *cobra.Command {
	var to string
	var dryRun, yes bool
	r := pipeline.RewindRequest{}
	c := &cobra.Command{
		Use:   "rewind --to POINT|POSITION|GTID|TIME",
		Short: "Restore targets, with all that is remembered of them, to a rewind point",
		Long: `rewind restores every target to the newest rewind point at or before what --to names,
and the mark with them, in one transaction of the destination: rows, history, remembered
events, taken files, quarantine. It runs nothing: replay goes on from there, with the
flows as they are then. So any position can be reached: rewind --to it, then
replay --until it. It can be killed at any moment and given again. No daemon may run.

--to: ` + pipeline.MomentForms + `.

With --flow only those flows' targets are restored; the others stay as they are, and the
replay passes over what they hold already.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return fault.Badly("rewind needs --to: a rewind point, a position or a time; `tailrace checkpoint list` shows the points")
			}
			moment, err := pipeline.ParseMoment(to)
			if err != nil {
				return fmt.Errorf("--to: %w", err)
			}
			r.To = moment
			asks := !dryRun && !yes
			if asks && !terminal(a.in) {
				return fault.Badly("there is no terminal to ask on: pass --yes to do it, or --dry-run to see what it would do")
			}
			r.Confirm = func(plan pipeline.Rewound) (bool, error) {
				a.printRewind(&plan)
				if !asks {
					return yes && !dryRun, nil
				}
				fmt.Fprintf(a.errs, "\nRewind? [y/N] ")
				answer, _ := bufio.NewReader(a.in).ReadString('\n')
				if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
					return false, fault.Badly("not confirmed; nothing has happened")
				}
				return true, nil
			}
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
			plan, err := pipeline.Rewind(ctx, cfg, r)
			switch {
			case err != nil:
				return err
			case plan.Nothing:
				fmt.Fprintf(a.out, "nothing to do: the mark at %s lies there already\n", placeOfMark(&plan.From))
			case plan.Done:
				fmt.Fprintf(a.out, "\nrewound to point %d; `tailrace replay` goes on from there", plan.Point.Number)
				if r.To.Number == 0 && r.To.Label == "" {
					fmt.Fprintf(a.out, ", and `tailrace replay --until %q` up to there", r.To.Text)
				}
				fmt.Fprintln(a.out)
			case ctx.Err() != nil:
				return fault.Refuse("give it again", "the rewind was stopped; nothing has happened")
			}
			return nil
		},
	}
	c.Flags().StringVar(&to, "to", "", "where to: a point's number or label, a position, GTIDs or a time")
	c.Flags().StringArrayVar(&r.Flows, "flow", nil, "restore only this flow's target, by the flow's name or the target's (repeatable)")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, and do nothing")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&r.AllowGap, "allow-gap", false, "also where files that a replay would take again are gone or changed: their events are missing then")
	return a.configured(c)
}

// terminal reports whether somebody can be asked.
func terminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func placeOfMark(m *checkpoint.Mark) string {
	text := m.Position.String()
	if !m.CommitTime.IsZero() {
		text += " (newest commit " + m.CommitTime.UTC().Format(time.RFC3339Nano) + ")"
	}
	return text
}

// printRewind says what a rewind changes.
func (a *app) printRewind(plan *pipeline.Rewound) {
	p := &plan.Point
	label := ""
	if p.Label != "" {
		label = " (" + oneLine(p.Label) + ")"
	}
	fmt.Fprintf(a.out, "rewind to point %d%s, made %s\n", p.Number, label, p.Made.UTC().Format(time.RFC3339))
	fmt.Fprintf(a.out, "the mark goes from %s\n          back to %s\n", placeOfMark(&plan.From), placeOfMark(&p.Mark))
	if len(plan.Restored) > 0 {
		w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "\nRESTORED\tROWS CHANGED SINCE")
		for _, t := range plan.Restored {
			fmt.Fprintf(w, "%s\t%d\n", t.Target, t.Rows)
		}
		w.Flush()
	}
	if len(plan.Left) > 0 {
		w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "\nSTAYS AS IT IS\tPHASE\tTHE REPLAY PASSES OVER\tBECAUSE")
		for _, t := range plan.Left {
			over := "-"
			if t.Phase == checkpoint.Catching {
				over = "changes up to " + t.Since.String()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", t.Target, t.Phase.Shown(), over, oneLine(t.Why))
		}
		w.Flush()
	}
	if len(plan.Gone) > 0 {
		var numbers []string
		for _, g := range plan.Gone {
			numbers = append(numbers, fmt.Sprint(g.Number))
		}
		fmt.Fprintf(a.out, "\nno choice any more: points %s (replay --until still takes them)\n", strings.Join(numbers, ", "))
	}
	for _, f := range plan.Missing {
		fmt.Fprintf(a.out, "missing after a replay: the events of file %s, which %s\n", oneLine(f.File.Path), f.What)
	}
}
