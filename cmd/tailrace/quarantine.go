package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/sink"
)

func (a *app) quarantineCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "quarantine",
		Short: "Events that could not take their place: list them, retry them, discard them",
		Long: `An event whose key or sequence is NULL or cannot be read, or whose condition
fails, is set aside; the flow goes on. It waits in the destination until it is
retried or discarded, and status --check exits 1 meanwhile.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return fault.Badly("quarantine needs a command: list, retry or discard")
		},
	}
	c.AddCommand(a.quarantineListCommand(), a.quarantineRetryCommand(), a.quarantineDiscardCommand())
	return c
}

// asideLine is an event in `quarantine list --json`, one object a line; its names are
// stable.
type asideLine struct {
	ID       int64           `json:"id"`
	Flow     string          `json:"flow"`
	Target   string          `json:"target"`
	Time     *time.Time      `json:"time"`
	Position string          `json:"position"`
	Reason   string          `json:"reason"`
	Event    json.RawMessage `json:"event,omitempty"` // with --show-values
}

func (a *app) quarantineListCommand() *cobra.Command {
	var flow string
	var asJSON, values bool
	c := &cobra.Command{
		Use:   "list",
		Short: "Print the events that are set aside and not resolved",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withMemory(cmd.Context(), func(ctx context.Context, _ *environment, _ sink.Writer, m sink.Memory) error {
				table := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
				out := json.NewEncoder(a.out)
				out.SetEscapeHTML(false)
				n := 0
				err := m.Quarantine(ctx, flow, func(e sink.Aside) error {
					n++
					if asJSON {
						line := asideLine{ID: e.ID, Flow: e.Flow, Target: e.Target.String(), Position: e.Position, Reason: e.Reason}
						if !e.Time.IsZero() {
							line.Time = &e.Time
						}
						if values && json.Valid(e.Event) {
							line.Event = e.Event
						}
						return out.Encode(line)
					}
					if n == 1 {
						fmt.Fprintln(table, "ID\tFLOW\tTARGET\tTIME\tPOSITION\tREASON")
					}
					at := "-"
					if !e.Time.IsZero() {
						at = e.Time.UTC().Format(time.RFC3339Nano)
					}
					fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", e.ID, e.Flow, e.Target, at, oneLine(e.Position), oneLine(e.Reason))
					if values {
						fmt.Fprintf(table, "\t%s\n", oneLine(string(e.Event)))
					}
					return nil
				})
				if err != nil {
					return err
				}
				if n == 0 && !asJSON {
					fmt.Fprintln(a.out, "nothing is in quarantine")
				}
				return table.Flush()
			})
		},
	}
	c.Flags().StringVar(&flow, "flow", "", "only events of this flow")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	c.Flags().BoolVar(&values, "show-values", false, "print the events' values too")
	return a.configured(c)
}

func (a *app) quarantineRetryCommand() *cobra.Command {
	var flow string
	var ids []string
	c := &cobra.Command{
		Use:   "retry",
		Short: "Judge events again by the flows as they are now, and apply those that are good",
		Long: `retry makes each event again from what was stored of it, with the present
definition of its flow, and applies it at the place that it had in the source: the
target then holds what it would hold had the event been good at once. Rows and the
event's resolution are one transaction. Events that are still bad stay, and the
exit code is 1. It owns the pipeline while it runs, so stop the daemon first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			numbers, err := eventNumbers(ids)
			if err != nil {
				return err
			}
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
			applied, stay := 0, 0
			err = pipeline.Retry(ctx, cfg, flow, numbers, func(r pipeline.Retried) {
				if r.Stays == "" {
					applied++
					return
				}
				stay++
				fmt.Fprintf(a.out, "%d stays: %s, %s: %s\n", r.ID, r.Flow, r.Position, r.Stays)
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%d applied, %d still in quarantine\n", applied, stay)
			if ctx.Err() != nil {
				return fault.Refuse("run it again", "retry was stopped before it had looked at everything")
			}
			if stay > 0 {
				a.code = fault.ExitFindings
			}
			return nil
		},
	}
	c.Flags().StringVar(&flow, "flow", "", "only events of this flow")
	c.Flags().StringArrayVar(&ids, "id", nil, "only this event (repeatable)")
	return a.configured(c)
}

func (a *app) quarantineDiscardCommand() *cobra.Command {
	var flow string
	var ids []string
	var all, yes bool
	c := &cobra.Command{
		Use:   "discard",
		Short: "Mark events as resolved without applying them",
		Long: `discard marks events as resolved without applying them. Their rows stay in the
table _tailrace.quarantine, with the time of it. It owns the pipeline for a moment,
so stop the daemon first.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			numbers, err := eventNumbers(ids)
			if err != nil {
				return err
			}
			if all == (len(numbers) > 0) {
				return fault.Badly("say which: --id N (repeatable), or --all")
			}
			return a.withMemory(cmd.Context(), func(ctx context.Context, env *environment, dst sink.Writer, m sink.Memory) error {
				me, err := sink.ThisProcess()
				if err != nil {
					return err
				}
				if err := dst.Own(ctx, me, 0); err != nil {
					return fmt.Errorf("take ownership of pipeline %s: %w", env.Pipeline, err)
				}
				if all {
					if err := m.Quarantine(ctx, flow, func(e sink.Aside) error { numbers = append(numbers, e.ID); return nil }); err != nil {
						return err
					}
				} else if err := pipeline.MustBeInQuarantine(ctx, m, flow, numbers); err != nil {
					return err
				}
				if len(numbers) == 0 {
					fmt.Fprintln(a.out, "nothing is in quarantine")
					return nil
				}
				if !yes {
					fmt.Fprintf(a.errs, "Resolve %d events without applying them? [y/N] ", len(numbers))
					answer, _ := bufio.NewReader(a.in).ReadString('\n')
					if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
						return fault.Badly("not confirmed; pass --yes to do it without asking")
					}
				}
				if err := m.Resolve(ctx, numbers); err != nil {
					return err
				}
				fmt.Fprintf(a.out, "%d discarded\n", len(numbers))
				return nil
			})
		},
	}
	c.Flags().StringVar(&flow, "flow", "", "only events of this flow")
	c.Flags().StringArrayVar(&ids, "id", nil, "this event (repeatable)")
	c.Flags().BoolVar(&all, "all", false, "all events (of the flow)")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return a.configured(c)
}

// withMemory opens the destination for a command about sequenced flows.
func (a *app) withMemory(ctx context.Context, do func(context.Context, *environment, sink.Writer, sink.Memory) error) error {
	env, err := a.load()
	if err != nil {
		return err
	}
	dst, err := env.openSink(ctx)
	if err != nil {
		return fmt.Errorf("open the destination: %w", err)
	}
	defer dst.Close(ctx)
	m, ok := dst.(sink.Memory)
	if !ok {
		return fault.Badly("this destination does not take flows with sequence_by")
	}
	return do(ctx, env, dst, m)
}

// eventNumbers reads --id flags, each of one number or several with commas.
func eventNumbers(flags []string) (ids []int64, err error) {
	for _, flag := range flags {
		for _, text := range strings.Split(flag, ",") {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil || n <= 0 {
				return nil, fault.Badly("--id %q is no number of an event", text)
			}
			ids = append(ids, n)
		}
	}
	return ids, nil
}

// oneLine keeps a cell of a printed table on its line.
func oneLine(s string) string {
	return strings.NewReplacer("\t", `\t`, "\n", `\n`, "\r", `\r`).Replace(s)
}
