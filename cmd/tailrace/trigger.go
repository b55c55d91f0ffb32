package main

import (
	"context"
	"fmt"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/pipeline"
	"tailrace/sink"
	"tailrace/source/files"
)

const kindTrigger = "trigger"

// trigger is what the configuration says of when to run; nil: follow all the time.
func (e *environment) trigger(failed func(sink.Run, error)) (*pipeline.Trigger, error) {
	spec := e.Trigger.Spec()
	if spec.IsZero() {
		return nil, nil
	}
	t := &pipeline.Trigger{Next: spec.Next, Why: sink.RunEvery, Failed: failed}
	if spec.Cron != "" {
		t.Why = sink.RunCron
	}
	if spec.FileArrival != "" {
		a, err := files.NewArrivals(filepath.Dir(e.path), spec.FileArrival)
		if err != nil {
			return nil, err
		}
		t.Arrivals = a
	}
	return t, nil
}

func (a *app) triggerCommand() *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use:   "trigger",
		Short: "Have a daemon with a trigger run now, and wait for the end of that run",
		Long: `trigger asks the daemon of a pipeline with trigger to run now, and waits. While a run is
going, another follows at its end. A run that fails is an error here too.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindTrigger}, wait, func(context.Context, pipeline.Config) (string, error) {
				return "", fault.Refuse("`tailrace run --once` runs it here and now; `tailrace run` starts the daemon", "no daemon runs")
			})
			if err == nil {
				fmt.Fprintln(a.out, text)
			}
			return err
		},
	}
	c.Flags().DurationVar(&wait, "timeout", 24*time.Hour, "how long to wait for the end of the run; then exit 4, and it goes on")
	return a.configured(c)
}

func triggerKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindTrigger, Again: true,
		Do: func(ctx context.Context, _ control.Request, _ control.Rows) (string, error) {
			r, err := hold.RunNow(ctx)
			switch {
			case err != nil:
				return "", err
			case r.Outcome == sink.RunFailed:
				return "", &fault.Error{Kind: fault.Operator, Op: fmt.Sprintf("run %d failed: %s", r.Number, r.Error)}
			}
			return fmt.Sprintf("run %d %s at %s: %d rows, in %.1f s", r.Number, r.Outcome, r.Position, r.Rows, r.Ended.Sub(r.Started).Seconds()), nil
		}}
}

// triggerStatus is about a pipeline with a trigger.
type triggerStatus struct {
	When string      `json:"when"`
	Next *time.Time  `json:"next,omitempty"` // none while a run is going, and where files decide
	Runs []runStatus `json:"runs"`           // the newest first
}

type runStatus struct {
	Number   int64      `json:"number"`
	Why      string     `json:"why"` // start | every | cron | file arrival | asked
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`
	Outcome  string     `json:"outcome"` // running | done | failed | stopped | interrupted
	Position string     `json:"position"`
	Rows     int64      `json:"rows"`
	Error    string     `json:"error,omitempty"`
}

const (
	runsTold  = 20 // in JSON
	runsShown = 5
)

// runsOf reads what is remembered of the runs; nil without a trigger.
func (e *environment) runsOf(ctx context.Context, dst sink.Writer, st *status) error {
	spec := e.Trigger.Spec()
	book, ok := dst.(sink.Runs)
	if spec.IsZero() || !ok {
		return nil
	}
	list, err := book.Runs(ctx, runsTold)
	if err != nil {
		return fmt.Errorf("read the runs: %w", err)
	}
	t := &triggerStatus{When: whenText(spec), Runs: []runStatus{}}
	for _, r := range list {
		shown := runStatus{Number: r.Number, Why: string(r.Why), Started: r.Started, Outcome: string(r.Outcome), Position: r.Position, Rows: r.Rows, Error: r.Error}
		if !r.Ended.IsZero() {
			shown.Ended = &r.Ended
		}
		t.Runs = append(t.Runs, shown)
	}
	st.Trigger = t
	if len(list) == 0 {
		return nil
	}
	newest := list[0]
	if newest.Outcome != sink.RunGoesOn {
		if next := spec.Next(newest.Started.Local()); !next.IsZero() {
			t.Next = &next
			if late := time.Since(next); late > e.MaxLag && st.Paused == nil {
				st.Problems = append(st.Problems, fmt.Sprintf("the run of %s has not begun (max_lag is %s): does the daemon run?", next.Format(time.RFC3339), e.MaxLag))
			}
		}
	} else if len(list) > 1 {
		newest = list[1]
	}
	if newest.Outcome == sink.RunFailed {
		st.Problems = append(st.Problems, fmt.Sprintf("run %d failed: %s", newest.Number, newest.Error))
	}
	return nil
}

func whenText(t flow.Trigger) string {
	switch {
	case t.Every != 0:
		return "every " + t.Every.String()
	case t.TimeZone != "":
		return fmt.Sprintf("cron %s, %s", t.Cron, t.TimeZone)
	case t.Cron != "":
		return "cron " + t.Cron
	}
	return "files that arrive at " + t.FileArrival
}

func (a *app) printRuns(t *triggerStatus) {
	if t == nil {
		return
	}
	next := ""
	if t.Next != nil {
		next = ", next at " + t.Next.Format(time.RFC3339)
	}
	fmt.Fprintf(a.out, "\nruns: %s%s\n", oneLine(t.When), next)
	if len(t.Runs) == 0 {
		return
	}
	w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tWHY\tSTARTED\tSECONDS\tOUTCOME\tPOSITION\tROWS")
	for _, r := range t.Runs[:min(len(t.Runs), runsShown)] {
		took := "-"
		if r.Ended != nil {
			took = fmt.Sprintf("%.1f", r.Ended.Sub(r.Started).Seconds())
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\n", r.Number, r.Why, r.Started.Local().Format(time.RFC3339), took, r.Outcome, dash(r.Position), r.Rows)
	}
	w.Flush()
}
