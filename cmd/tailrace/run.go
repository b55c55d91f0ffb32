package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/internal/metrics"
	"tailrace/internal/pipeline"
	"tailrace/sink"
)

func (a *app) runCommand() *cobra.Command {
	var mode pipeline.Mode
	var wait time.Duration
	var share float64
	c := &cobra.Command{
		Use:   "run",
		Short: "Copy what is missing, then follow the source until stopped",
		Long: `run is the daemon: it copies the tables that are not there yet under one snapshot,
then applies every change as it is committed. With trigger in the configuration it
catches up at its start and at each moment of the trigger, and rests in between. SIGTERM finishes the running batch
and leaves; a second signal leaves at once. It can be killed at any moment and
started again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("max-delete-share") {
				if share < 0 || share > 1 {
					return fault.Badly("--max-delete-share is a part between 0 and 1, not %v", share)
				}
				mode.DeleteShare = &share
			}
			return a.pipelineRun(cmd, mode, wait, nil)
		},
	}
	c.Flags().BoolVar(&mode.Once, "once", false, "catch up to the source's position at the start, then exit: 0, or 1 if a table is parked")
	c.Flags().BoolVar(&mode.Overwrite, "overwrite", false, "start over: copy everything again, replacing rows that targets hold")
	c.Flags().Float64Var(&share, "max-delete-share", -1, "the part of a target's rows that a snapshot may delete in this run, in place of snapshot.max_delete_share; 1: all")
	c.Flags().DurationVar(&wait, "wait-owner", 0, "wait this long for an owner on another host to become stale")
	return a.configured(c)
}

func (a *app) backfillCommand() *cobra.Command {
	mode := pipeline.Mode{CopyOnly: true}
	var begin beginning
	c := &cobra.Command{
		Use:   "backfill",
		Short: "Make the slot and the consistent copy, then exit; run continues without a gap",
		Long: `backfill makes the slot and copies the tables. With --prepare it makes the slot and
copies nothing: a backup of the source that is taken after that is restored into the
destination, and backfill --adopt goes on from there. With --adopt alone the targets
are compared with the source, and taken as they are if they are equal.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			mode.Begun = begin.took
			if err := a.pipelineRun(cmd, mode, 0, &begin); err != nil {
				return err
			}
			return a.reportBegun(&begin)
		},
	}
	begin.flags(c)
	c.Flags().StringArrayVar(&mode.Tables, "table", nil, "copy this target again (repeatable); the others stay as they are. With --prepare and --adopt: only this one")
	c.Flags().BoolVar(&mode.Overwrite, "overwrite", false, "replace rows that targets hold")
	c.Flags().BoolVar(&mode.NoFollow, "no-follow", false, "fill the targets and leave no slot, no publication and no mark: run cannot continue from there")
	return a.configured(c)
}

// pipelineRun runs the pipeline; begin are a command's flags about how it begins, or nil.
func (a *app) pipelineRun(cmd *cobra.Command, mode pipeline.Mode, wait time.Duration, begin *beginning) (err error) {
	env, err := a.load()
	if err != nil {
		return err
	}
	for _, n := range env.sqlNotes() {
		env.log.Info("SQL: " + n)
	}
	p := newProgress(a.errs, env.log)
	p.rate = int64(env.Hydrate.MaxRate)
	cfg, err := env.pipeline(p)
	if err != nil {
		return err
	}
	cfg.WaitOwner = wait
	if begin != nil {
		if err := begin.settle(cfg.Beginning, &mode); err != nil {
			return err
		}
		cfg.Beginning = begin.how
	}
	boundMemory(env.Config)
	ctx, done := untilSignal(cmd.Context(), env.log)
	defer done()
	daemon := !mode.Once && !mode.CopyOnly
	if daemon {
		cfg.Attend = env.attend
		told := env.notices(ctx)
		defer func() { told.end(ctx, err, lastRun(p.stats)) }()
		cfg.Trigger, err = env.trigger(told.failed)
	} else if mode.Once {
		cfg.Trigger, err = env.trigger(nil)
	}
	if err != nil {
		return err
	}
	stopReport := p.report(reportEvery)
	defer stopReport()
	unlisten, err := env.listen(cmd.Context(), p.stats)
	if err != nil {
		return err
	}
	defer unlisten()
	if err := pipeline.Run(ctx, cfg, mode); err != nil {
		return err
	}
	said := []any{"position", p.stats.Applied.Get().String(), "transactions", p.stats.Transactions.Load(),
		"changes", p.stats.Changes.Load(), "written", p.stats.Operations.Load(), "batches", p.stats.Batches.Load(),
		"writing_seconds", fmt.Sprintf("%.1f", time.Duration(p.stats.ApplyTime.Load()).Seconds())}
	env.log.Info("done", append(said, p.sequencedCounts()...)...)
	if mode.Once || mode.CopyOnly {
		a.reportParked(p.stats.Phases())
	}
	return nil
}

// lastRun is the newest run that has ended; nil: none has, or there is no trigger.
func lastRun(stats *pipeline.Stats) *sink.Run {
	if f := stats.Runs(); f != nil && f.Last.Number > 0 {
		return &f.Last
	}
	return nil
}

// reportParked ends a run that was to reach an end with exit code 1 where not all
// targets did, also where one was parked before it.
func (a *app) reportParked(phases map[change.Name]checkpoint.Phase) {
	var parked []string
	for target, phase := range phases {
		if phase == checkpoint.Parked {
			parked = append(parked, target.String())
		}
	}
	if len(parked) == 0 {
		return
	}
	slices.Sort(parked)
	fmt.Fprintf(a.errs, "tailrace: parked: %s; `tailrace status` says why and what to do\n", strings.Join(parked, ", "))
	a.code = fault.ExitFindings
}

// listen shows the pipeline to the outside, if the configuration says so.
func (e *environment) listen(ctx context.Context, stats *pipeline.Stats) (end func(), err error) {
	if e.Listen == "" {
		return func() {}, nil
	}
	board := metrics.New(e.Pipeline, version, stats, e.MaxLag)
	ctx, cancel := context.WithCancel(ctx)
	wait, at, err := board.Listen(ctx, e.Listen, e.Pprof)
	if err != nil {
		cancel()
		return nil, err
	}
	e.log.Info("listening", "address", at.String())
	return func() {
		cancel()
		if err := wait(); err != nil {
			e.log.Debug("closing failed", "what", "listener", "error", err.Error())
		}
	}, nil
}

// boundMemory tells the collector how much may be used: what is configured to wait
// or be folded, twice over for its encoded and folded forms, and 64 MiB for the
// rest. Without it the heap would be let grow to double of what lives. GOMEMLIMIT
// overrides.
func boundMemory(c *config.Config) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	readers := config.Bytes(1) // each holds a piece outside the queue
	if c.Source.Kind != "files" && len(c.Relations) > 0 {
		readers = 2
	}
	debug.SetMemoryLimit(2*int64(c.QueueBytes+c.Batch.MaxBytes+readers*c.Source.MaxTransactionBytes) + 64<<20)
}
