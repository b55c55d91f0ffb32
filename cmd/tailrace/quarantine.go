package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/sink"
)

func (a *app) quarantineCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "quarantine",
		Short: "Events that could not take their place: list them, retry them, discard them",
		Long: `An event whose key or sequence is NULL or cannot be read, or whose condition
fails, is set aside; so is a row that an expectation drops. The flow goes on. It waits in the destination until it is
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
	Time     *string         `json:"time"` // RFC 3339
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
			env, err := a.load()
			if err != nil {
				return err
			}
			p := asidePrinter{w: a.out, json: asJSON, table: tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)}
			if _, err := env.look(cmd.Context(), askQuarantine, quarantineRequest{flow, values}, p.row); err != nil {
				return err
			}
			return p.end()
		},
	}
	c.Flags().StringVar(&flow, "flow", "", "only events of this flow")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	c.Flags().BoolVar(&values, "show-values", false, "print the events' values too")
	return a.configured(c)
}

type quarantineRequest struct {
	Flow   string `json:"flow,omitempty"`
	Values bool   `json:"values,omitempty"`
}

// askQuarantine's rows are id, flow, target, time, position, reason and event, without a
// header; the event only where its values are asked for.
var askQuarantine = question{kind: kindQuarantine,
	answer: func(ctx context.Context, _ *environment, dst sink.Writer, argument []byte, rows control.Rows) (string, error) {
		var asked quarantineRequest
		if err := understand(argument, &asked); err != nil {
			return "", err
		}
		m, ok := dst.(sink.Memory)
		if !ok {
			return "", errNoMemory
		}
		return "", m.Quarantine(ctx, asked.Flow, func(e sink.Aside) error {
			id, target := strconv.FormatInt(e.ID, 10), e.Target.String()
			cells := []*string{&id, &e.Flow, &target, nil, &e.Position, &e.Reason, nil}
			if !e.Time.IsZero() {
				at := e.Time.UTC().Format(time.RFC3339Nano)
				cells[3] = &at
			}
			if asked.Values {
				event := string(e.Event)
				cells[6] = &event
			}
			return rows(cells)
		})
	}}

var errNoMemory = fault.Badly("this destination does not take flows with sequence_by")

// asidePrinter prints askQuarantine's rows.
type asidePrinter struct {
	w     io.Writer
	json  bool
	table *tabwriter.Writer
	n     int
}

func (p *asidePrinter) row(cells []*string) error {
	p.n++
	at, event := cells[3], cells[6]
	if p.json {
		id, err := strconv.ParseInt(*cells[0], 10, 64)
		if err != nil {
			return fault.Corrupted("read the number of an event in quarantine: %v", err)
		}
		line := asideLine{ID: id, Flow: *cells[1], Target: *cells[2], Position: *cells[4], Reason: *cells[5], Time: at}
		if event != nil && json.Valid([]byte(*event)) {
			line.Event = json.RawMessage(*event)
		}
		out := json.NewEncoder(p.w)
		out.SetEscapeHTML(false)
		return out.Encode(line)
	}
	if p.n == 1 {
		fmt.Fprintln(p.table, "ID\tFLOW\tTARGET\tTIME\tPOSITION\tREASON")
	}
	when := "-"
	if at != nil {
		when = *at
	}
	fmt.Fprintf(p.table, "%s\t%s\t%s\t%s\t%s\t%s\n", *cells[0], *cells[1], *cells[2], when, oneLine(*cells[4]), oneLine(*cells[5]))
	if event != nil {
		fmt.Fprintf(p.table, "\t%s\n", oneLine(*event))
	}
	return nil
}

func (p *asidePrinter) end() error {
	if p.n == 0 && !p.json {
		fmt.Fprintln(p.w, "nothing is in quarantine")
	}
	return p.table.Flush()
}

func (a *app) quarantineRetryCommand() *cobra.Command {
	var flow string
	var ids []string
	c := &cobra.Command{
		Use:   "retry",
		Short: "Judge events again by the flows as they are now, and apply those that are good",
		Long: `retry makes each event again from what was stored of it, with the present
definition of its flow, and applies it at the place that it had in the source: the
target then holds what it would hold had the event been good at once. A row of a flow
without sequence_by has no place to come back to, and stays. Rows and the event's resolution are one transaction. Events that are still bad stay, and the
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
		return errNoMemory
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
