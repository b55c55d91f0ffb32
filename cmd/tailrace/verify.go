package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
)

func (a *app) verifyCommand() *cobra.Command {
	var tables []string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Compare source and destination at one position; exit 1 if they differ",
		Long: `verify takes a snapshot of the source, catches up exactly to its position, and
compares every row on both sides; of a history target its open versions, and that
the intervals of a key neither overlap nor are empty. The source may be written
meanwhile. The source of a target with sequence_by holds events, not rows: such a
target is compared with what the events that are remembered of it say that it holds.
It owns the pipeline while it runs, so stop the daemon first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			p := newProgress(a.errs, env.log)
			cfg, err := env.pipeline(p)
			if err != nil {
				return err
			}
			ctx, done := untilSignal(cmd.Context(), env.log)
			defer done()
			var rows, differences int64
			violations, skipped := 0, 0
			err = pipeline.Verify(ctx, cfg, tables, func(r pipeline.Comparison) {
				rows += r.Rows
				differences += r.Differences
				violations += len(r.Violations)
				if r.Skipped != "" {
					skipped++
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
			})
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return fault.Refuse("run it again", "verify was stopped before it had compared everything")
			}
			fmt.Fprintf(a.out, "%d differences of %d rows\n", differences, rows)
			if differences > 0 || violations > 0 || skipped > 0 {
				a.code = fault.ExitFindings
			}
			return nil
		},
	}
	c.Flags().StringArrayVar(&tables, "table", nil, "compare this target (repeatable; default all)")
	return a.configured(c)
}
