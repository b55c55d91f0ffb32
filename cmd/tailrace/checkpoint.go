package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tailrace/checkpoint"
	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/sink"
	"tailrace/source"
)

// pointStatus is a rewind point as `checkpoint list --json` prints it; its names are stable.
type pointStatus struct {
	Number     int64      `json:"number"`
	Label      string     `json:"label,omitempty"`
	Position   string     `json:"position"`
	CommitTime *time.Time `json:"commit_time,omitempty"` // the newest commit that it holds
	Made       time.Time  `json:"made"`
	UndoBytes  int64      `json:"undo_bytes"` // about what the destination keeps for it
	Gone       bool       `json:"gone,omitempty"`
	Replayable bool       `json:"replayable"` // the log behind it can be read
	Why        string     `json:"why,omitempty"`
}

func (a *app) checkpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "checkpoint",
		Short: "Rewind points: list them, or make one now",
		Long: `Rewind points are moments to which rewind restores targets. The daemon makes one
every rewind.every and keeps them for rewind.keep; create makes one at once.`,
	}
	c.AddCommand(a.checkpointListCommand(), a.checkpointCreateCommand())
	return c
}

func (a *app) checkpointListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "Print the rewind points, oldest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			text, err := env.look(cmd.Context(), askPoints, nil, nil)
			if err != nil {
				return err
			}
			list := []pointStatus{}
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(a.out)
				enc.SetIndent("", "  ")
				return enc.Encode(list)
			}
			a.printPoints(list, env.Rewind.On())
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, also points that a rewind has passed over (gone)")
	return a.configured(c)
}

func (a *app) printPoints(list []pointStatus, on bool) {
	list = slices.DeleteFunc(list, func(p pointStatus) bool { return p.Gone })
	if len(list) == 0 {
		text := "no rewind points yet"
		if !on {
			text = "no rewind points: `rewind` is not configured"
		}
		fmt.Fprintln(a.out, text)
		return
	}
	w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "POINT\tPOSITION\tNEWEST COMMIT\tAGE\tUNDO\tREPLAY\tLABEL")
	for _, p := range list {
		commit, replay := "-", "yes"
		if p.CommitTime != nil {
			commit = p.CommitTime.UTC().Format(time.RFC3339Nano)
		}
		if !p.Replayable {
			replay = "no: " + p.Why
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Number, p.Position, commit, max(0, time.Since(p.Made)).Round(time.Second), size(p.UndoBytes), replay, dash(p.Label))
	}
	w.Flush()
}

var askPoints = question{kind: kindPoints, limit: statusMost,
	answer: func(ctx context.Context, e *environment, dst sink.Writer, _ []byte, _ control.Rows) (string, error) {
		rewinds, ok := dst.(sink.Rewinds)
		if !ok {
			return "", fault.Badly("this destination keeps no rewind points")
		}
		points, err := rewinds.Points(ctx)
		if err != nil {
			return "", fmt.Errorf("read the rewind points: %w", err)
		}
		mark, err := dst.State(ctx)
		if err != nil {
			return "", fmt.Errorf("read the mark: %w", err)
		}
		src, err := e.openSources(ctx)
		var kept *source.Kept
		if err == nil {
			defer src.close(ctx)
			pipeline.Locate(src.main, mark)
			kept, err = keptBy(ctx, src.log)
		}
		list := []pointStatus{}
		for _, p := range points {
			st := pointStatus{Number: p.Number, Label: p.Label, Position: p.Mark.Position.String(), Made: p.Made.UTC(), UndoBytes: p.Bytes, Gone: p.Gone}
			if !p.Mark.CommitTime.IsZero() {
				commit := p.Mark.CommitTime.UTC()
				st.CommitTime = &commit
			}
			switch {
			case err != nil:
				st.Why = "the source cannot be asked"
			case p.Gone:
				st.Why = "a rewind has passed over it"
			default:
				st.Why = pipeline.Unreadable(&p, kept, &mark)
				st.Replayable = st.Why == ""
			}
			list = append(list, st)
		}
		if err != nil {
			e.log.Warn("the source cannot be asked for the log that it keeps", "error", err.Error())
		}
		text, err := json.Marshal(list)
		return string(text), err
	}}

// keptBy asks a log what it keeps for rewind points; nil: it keeps nothing for anybody.
func keptBy(ctx context.Context, log source.Source) (*source.Kept, error) {
	keeper, ok := log.(source.Keeper)
	if !ok {
		return nil, nil
	}
	kept, err := keeper.Kept(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask what the source keeps for rewind points: %w", err)
	}
	return &kept, nil
}

func (a *app) checkpointCreateCommand() *cobra.Command {
	var label string
	var wait time.Duration
	c := &cobra.Command{
		Use: "create", Short: "Make a rewind point now", Args: cobra.NoArgs,
		Long: `create makes a rewind point at the mark, for instance before a deploy. A running daemon
is asked to do it between two batches; without one this process owns the pipeline for
the moment.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := pipeline.CheckLabel(label); err != nil {
				return err
			}
			text, err := a.daemonOrHere(cmd, control.Request{Kind: kindCheckpoint, Argument: label}, wait, func(ctx context.Context, cfg pipeline.Config) (string, error) {
				p, err := pipeline.Checkpoint(ctx, cfg, label)
				return pointed(p), err
			})
			if err == nil {
				fmt.Fprintln(a.out, text)
			}
			return err
		},
	}
	c.Flags().StringVar(&label, "label", "", "a name for it, which rewind and replay take in place of its number")
	c.Flags().DurationVar(&wait, "timeout", 10*time.Minute, "how long to wait for the daemon; then exit 4, and it goes on")
	return a.configured(c)
}

func checkpointKind(hold *pipeline.Hold) control.Kind {
	return control.Kind{Name: kindCheckpoint, Again: true, AtOnce: 1,
		Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
			p, err := hold.Checkpoint(ctx, r.Argument)
			return pointed(p), err
		}}
}

func pointed(p checkpoint.Point) string {
	text := fmt.Sprintf("rewind point %d", p.Number)
	if p.Label != "" {
		text += " (" + p.Label + ")"
	}
	return text + " at " + p.Mark.Position.String()
}

// rewindStatus is the window of rewind points in status.
type rewindStatus struct {
	Points       int        `json:"points"`
	Oldest       string     `json:"oldest,omitempty"`        // its position
	OldestCommit *time.Time `json:"oldest_commit,omitempty"` // the newest commit that it holds
	KeepSlot     string     `json:"keep_slot,omitempty"`
	LogBegins    string     `json:"log_begins,omitempty"` // from where on the source's log can be read
	LogBytes     int64      `json:"kept_log_bytes"`
	UndoBytes    int64      `json:"undo_bytes"`
	Continuity   string     `json:"continuity"` // whole | lost | unknown
}

// rewind adds the window; kept is nil where the source could not be asked or keeps nothing.
func (st *status) rewind(ctx context.Context, e *environment, dst sink.Writer, mark checkpoint.Mark, kept *source.Kept) error {
	rewinds, ok := dst.(sink.Rewinds)
	if !ok {
		return nil
	}
	points, err := rewinds.Points(ctx)
	if err != nil {
		return fmt.Errorf("read the rewind points: %w", err)
	}
	if len(points) == 0 && !e.Rewind.On() {
		return nil
	}
	r := &rewindStatus{Continuity: "unknown"}
	st.Rewind = r
	if kept != nil {
		r.KeepSlot, r.LogBegins, r.LogBytes, r.Continuity = kept.Name, kept.From.String(), kept.Bytes, "whole"
	} else if e.Source.Kind == "files" {
		r.Continuity = "whole"
	}
	lost, why := 0, ""
	for i := range points {
		p := &points[i]
		r.UndoBytes += p.Bytes
		if p.Gone {
			continue
		}
		if r.Points++; r.Points == 1 {
			r.Oldest = p.Mark.Position.String()
			if !p.Mark.CommitTime.IsZero() {
				r.OldestCommit = &p.Mark.CommitTime
			}
		}
		if gone := pipeline.Unreadable(p, kept, &mark); r.Continuity != "unknown" && gone != "" {
			lost, why = lost+1, gone
		}
	}
	if lost > 0 {
		r.Continuity = "lost"
		st.Problems = append(st.Problems, fmt.Sprintf("%d of %d rewind points cannot be replayed from: %s; they are dropped when the daemon looks, and a new window begins", lost, r.Points, why))
	}
	return nil
}

func (r *rewindStatus) line() string {
	if r.Points == 0 {
		return "no points yet"
	}
	text := fmt.Sprintf("%d points, the oldest at %s", r.Points, r.Oldest)
	if r.OldestCommit != nil {
		text += ", newest commit " + r.OldestCommit.UTC().Format(time.RFC3339)
	}
	text += fmt.Sprintf("; destination keeps %s", size(r.UndoBytes))
	if r.KeepSlot != "" {
		text += fmt.Sprintf(", slot %s %s of log", r.KeepSlot, size(r.LogBytes))
	}
	if r.Continuity != "whole" {
		text += "; continuity " + r.Continuity
	}
	return text
}
