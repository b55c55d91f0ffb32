package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
)

func (a *app) replayCommand() *cobra.Command {
	var until string
	var follow bool
	c := &cobra.Command{
		Use:   "replay",
		Short: "Process the log again from the mark, with the flows as they are now, to an exact place",
		Long: `replay goes on from the mark, which rewind has moved back, with the present flows. It
stops between two transactions: in front of the first that ends behind --until (of a
time: the first, in commit order, that was committed later), or at the source's position
when it started, if that comes first; then it exits 0, or 1 if a target is parked. Files
and snapshots are taken as by run --once. --follow goes on as the daemon.

--until: ` + pipeline.MomentForms + `.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode := pipeline.Mode{Replay: true, Once: !follow}
			if until != "" {
				if follow {
					return fault.Badly("--follow goes on without end: it does not go with --until")
				}
				moment, err := pipeline.ParseMoment(until)
				if err != nil {
					return fmt.Errorf("--until: %w", err)
				}
				mode.StopAt = &pipeline.Until{Moment: moment}
			}
			return a.pipelineRun(cmd, mode, 0, nil)
		},
	}
	c.Flags().StringVar(&until, "until", "", "where to stop: a point's number or label, a position, GTIDs or a time")
	c.Flags().BoolVar(&follow, "follow", false, "go on as the daemon")
	return a.configured(c)
}
