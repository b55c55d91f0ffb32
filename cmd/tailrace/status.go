package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tailrace/checkpoint"
	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/pipeline"
	"tailrace/sink"
	"tailrace/source"
)

// status is what `tailrace status --json` prints; its names are stable.
type status struct {
	Pipeline    string           `json:"pipeline"`
	Phase       string           `json:"phase"`
	Paused      *pauseStatus     `json:"paused,omitempty"`
	Position    string           `json:"position"`
	CommitTime  *time.Time       `json:"commit_time,omitempty"`
	Source      *sourceStatus    `json:"source,omitempty"`
	SourceError string           `json:"source_error,omitempty"`
	Continuity  string           `json:"continuity"` // whole | lost | unknown
	Why         string           `json:"why,omitempty"`
	Tables      []tableStatus    `json:"tables"`
	Flows       []flowStatus     `json:"flows"`     // of targets with sequence_by
	Files       []filesStatus    `json:"files"`     // relations of files that were taken from
	Sequenced   []memoryStatus   `json:"sequenced"` // targets of flows with sequence_by
	Snapshots   []snapshotStatus `json:"snapshots"`
	Quarantine  map[string]int64 `json:"quarantine"` // events set aside and not resolved, by flow
	Gaps        []gapStatus      `json:"gaps"`       // of histories: what was crossed in one step
	Problems    []string         `json:"problems"`   // what makes --check exit 1
	Trigger     *triggerStatus   `json:"trigger,omitempty"`

	Expected []expectedStatus `json:"expectations"` // what they met, by outcome
	Feeds    []fedStatus      `json:"change_feeds"`

	Rewind *rewindStatus `json:"rewind,omitempty"` // rewind points; none are configured, and none there: null
}

type gapStatus struct {
	Target   string    `json:"target"`
	From     string    `json:"from"` // changes behind it
	To       string    `json:"to"`   // and up to it were not seen one by one
	Reason   string    `json:"reason"`
	Recorded time.Time `json:"recorded"`
}

type pauseStatus struct {
	Since time.Time `json:"since"`
	By    string    `json:"by"`
}

type sourceStatus struct {
	Slot          string `json:"slot"`
	LogBegins     string `json:"log_begins,omitempty"` // where the server keeps its log by itself
	SlotActive    bool   `json:"slot_active"`
	Confirmed     string `json:"confirmed"`
	Head          string `json:"head"`
	LagBytes      int64  `json:"lag_bytes"`
	LagSeconds    int64  `json:"lag_seconds"` // age of the newest applied change while newer log waits; else 0
	RetainedBytes int64  `json:"retained_bytes"`
	BesideBytes   int64  `json:"beside_bytes"` // of log, kept for a copy beside the stream
}

type tableStatus struct {
	Target string `json:"target"`
	Source string `json:"source"`
	Phase  string `json:"phase"`
	Since  string `json:"since"`
	Reason string `json:"reason,omitempty"`
}

// expectedStatus is what an expectation met since the first copy of its flow began.
type expectedStatus struct {
	Flow        string `json:"flow"`
	Target      string `json:"target"`
	Expectation string `json:"expectation"`
	Action      string `json:"action"` // warn | drop: violated; not_judged: it reads a column that the event left as it was
	Events      int64  `json:"events"`
}

type flowStatus struct {
	Flow   string `json:"flow"`
	Target string `json:"target"`
	Source string `json:"source"` // empty: carried on by another flow
	Phase  string `json:"phase"`  // copying | catching | live | left
	Since  string `json:"since"`
}

type filesStatus struct {
	Relation string `json:"relation"`
	Taken    int64  `json:"taken"`
	Ended    bool   `json:"ended,omitempty"` // taken once, to its end
}

type memoryStatus struct {
	Target     string `json:"target"`
	Remembered int64  `json:"remembered"`          // events
	Tombstones int64  `json:"tombstones"`          // deletes among them that nothing visible depends on
	Estimated  bool   `json:"estimated,omitempty"` // the two are, from a sample
	Truncated  string `json:"truncated"`           // the highest truncate's sequence; empty: none
	Horizon    string `json:"horizon"`             // the highest sequence of a forgotten delete; empty: none
	Counts     counts `json:"counts"`
}

// counts are what happened to a target's events since its first copy began.
type counts struct {
	Late        int `json:"late"`                 // not the newest of their key when they arrived
	Ties        int `json:"ties"`                 // with a sequence that another event of their key has
	Duplicates  int `json:"duplicates"`           // delivered before: nothing was done
	Truncated   int `json:"truncated"`            // below a truncate: nothing was done
	Forgotten   int `json:"forgotten"`            // deletes that are remembered no more
	Unknown     int `json:"unknown_rows"`         // DELETEs of a table's rows of which nothing was remembered: nothing was done
	Resurrected int `json:"possibly_resurrected"` // of an unknown key, below the horizon: applied, or set aside where the flow says so
}

func (a *app) statusCommand() *cobra.Command {
	var asJSON, check bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Print the mark, the lag and the tables; --check exits 1 if something is wrong",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			st, err := env.status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(a.out)
				enc.SetIndent("", "  ")
				if err := enc.Encode(st); err != nil {
					return err
				}
			} else {
				a.printStatus(st)
			}
			if check && len(st.Problems) > 0 {
				a.code = fault.ExitFindings
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&check, "check", false, "exit 1 if a table is parked, events are in quarantine, the lag is above max_lag, the last run failed, or something is lost")
	return a.configured(c)
}

func (e *environment) status(ctx context.Context) (*status, error) {
	text, err := e.look(ctx, askStatus, nil, nil)
	if err != nil {
		return nil, err
	}
	st := &status{}
	return st, json.Unmarshal([]byte(text), st)
}

var askStatus = question{kind: kindStatus, limit: statusMost,
	answer: func(ctx context.Context, e *environment, dst sink.Writer, _ []byte, _ control.Rows) (string, error) {
		st, err := e.statusOf(ctx, dst)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(st)
		return string(text), err
	}}

// statusMost is how long a daemon may take to look at both sides.
const statusMost = time.Minute

func (e *environment) statusOf(ctx context.Context, dst sink.Writer) (*status, error) {
	mark, err := dst.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the mark: %w", err)
	}
	st := &status{Pipeline: e.Pipeline, Phase: string(mark.Phase), Position: mark.Position.String(), Continuity: "unknown", Tables: []tableStatus{}, Flows: []flowStatus{}, Files: []filesStatus{}, Sequenced: []memoryStatus{}, Snapshots: []snapshotStatus{}, Quarantine: map[string]int64{}, Expected: []expectedStatus{}, Feeds: []fedStatus{}, Gaps: []gapStatus{}, Problems: []string{}}
	switch mark.Phase {
	case checkpoint.None:
		st.Phase = "not started"
		st.Problems = append(st.Problems, "the pipeline has not been started")
	case checkpoint.Preparing:
		st.Problems = append(st.Problems, "the beginning was interrupted: give the same command again, `tailrace backfill --prepare` or `tailrace backfill --adopt`")
	case checkpoint.Prepared:
		st.Problems = append(st.Problems, fmt.Sprintf("nothing is followed yet: restore a backup of the source that was taken after %s, then `tailrace backfill --adopt`", mark.Position))
	}
	if !mark.CommitTime.IsZero() {
		st.CommitTime = &mark.CommitTime
	}
	if pauses, ok := dst.(sink.Pauses); ok {
		p, err := pauses.Paused(ctx)
		if err != nil {
			return nil, fmt.Errorf("read whether the pipeline is paused: %w", err)
		}
		if !p.IsZero() {
			st.Paused = &pauseStatus{p.Since, p.By}
		}
	}
	if err := e.runsOf(ctx, dst, st); err != nil {
		return nil, err
	}
	for _, t := range mark.Tables {
		st.Tables = append(st.Tables, tableStatus{Target: t.Target.String(), Source: t.Source.String(), Phase: t.Phase.Shown(), Since: t.Since.String(), Reason: t.Reason})
		if t.Phase == checkpoint.Parked {
			st.Problems = append(st.Problems, fmt.Sprintf("table %s is parked: %s", t.Target, t.Reason))
		}
	}
	if histories, ok := dst.(sink.Resyncs); ok {
		gaps, err := histories.Gaps(ctx)
		if err != nil {
			return nil, err
		}
		for _, g := range gaps {
			st.Gaps = append(st.Gaps, gapStatus{g.Target.String(), g.From.String(), g.To.String(), g.Reason, g.At})
		}
	}
	for _, f := range mark.Flows {
		phase := f.Phase
		if phase == checkpoint.Live && mark.Position.Before(f.Since) {
			phase = checkpoint.Catching
		}
		st.Flows = append(st.Flows, flowStatus{Flow: f.Name, Target: f.Target.String(), Source: f.Source.String(), Phase: string(phase), Since: f.Since.String()})
	}
	if err := st.fed(ctx, dst); err != nil {
		return nil, err
	}
	memory, sequenced := dst.(sink.Memory)
	if sequenced {
		counts, err := memory.Unresolved(ctx)
		if err != nil {
			return nil, fmt.Errorf("count the quarantine: %w", err)
		}
		for _, flow := range slices.Sorted(maps.Keys(counts)) {
			st.Quarantine[flow] = counts[flow]
			st.Problems = append(st.Problems, fmt.Sprintf("flow %s: %d events are in quarantine: see `tailrace quarantine list`", flow, counts[flow]))
		}
		violations, err := memory.Violations(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range violations {
			st.Expected = append(st.Expected, expectedStatus{v.Flow, v.Target.String(), v.Expectation, v.Met, v.Events})
		}
	}
	if sequenced && len(e.Relations) > 0 {
		if st.Files, err = takenFiles(ctx, memory); err != nil {
			return nil, err
		}
	}
	state, kept, bound, err := e.sourceState(ctx, mark)
	if fault.KindOf(err) == fault.Usage {
		return nil, err
	}
	if sequenced {
		memories, err := pipeline.Memories(ctx, memory, e.Specs(), e.sourceSchema(), e.defaultSchema(), mark.Tables, bound)
		if err != nil {
			return nil, err
		}
		for _, m := range memories {
			st.snapshot(&m)
			st.Sequenced = append(st.Sequenced, memoryStatus{Target: m.Target.String(), Remembered: m.Records, Tombstones: m.Tombstones, Estimated: m.Estimated, Truncated: m.Truncated, Horizon: m.Horizon,
				Counts: counts{Late: m.Counts.Late, Ties: m.Counts.Ties, Duplicates: m.Counts.Duplicates, Truncated: m.Counts.Truncated, Forgotten: m.Counts.Forgotten, Unknown: m.Counts.Unknown, Resurrected: m.Counts.Beyond}})
		}
	}
	asked := kept
	if err != nil {
		asked = nil
	}
	if rewound := st.rewind(ctx, e, dst, mark, asked); rewound != nil {
		return nil, rewound
	}
	if err != nil {
		st.SourceError = err.Error()
		st.Problems = append(st.Problems, "the source cannot be asked: "+err.Error())
		return st, nil
	}
	s := &sourceStatus{
		Slot: state.Slot.Name, SlotActive: state.Slot.Active, Confirmed: state.Slot.Confirmed.String(),
		Head: state.Head.String(), RetainedBytes: state.Slot.Retained, BesideBytes: state.Beside,
	}
	if state.Slotless {
		s.LogBegins = state.Oldest.String()
	}
	st.Source = s
	if mark.Phase == checkpoint.Live || mark.Phase == checkpoint.Copying || mark.Phase == checkpoint.Prepared {
		s.LagBytes = state.Head.Since(mark.Position)
		if s.LagBytes > 0 && !mark.CommitTime.IsZero() {
			s.LagSeconds = max(0, int64(time.Since(mark.CommitTime).Seconds()))
		}
		facts := pipeline.DecideState(state)
		if kept != nil && !facts.Slotless {
			facts.Kept, facts.KeptFrom = kept.Exists && !kept.Lost, kept.From
		}
		if _, err := checkpoint.DecideBeside(mark, facts, func() (checkpoint.Mark, error) { return dst.State(ctx) }); err != nil {
			st.Continuity, st.Why = "lost", err.Error()
			st.Problems = append(st.Problems, err.Error())
		} else {
			st.Continuity = "whole"
		}
		if st.Trigger != nil {
			// What waits for the next run is no lag; a run that does not come is a problem of its own.
		} else if s.LagSeconds > int64(e.MaxLag.Seconds()) && !s.SlotActive {
			st.Problems = append(st.Problems, fmt.Sprintf("nothing reads the slot, and the newest applied change is %d s old (limit %s)", s.LagSeconds, e.MaxLag))
		} else if s.LagSeconds > int64(e.MaxLag.Seconds()) && s.LagBytes > lagBytesNoise {
			st.Problems = append(st.Problems, fmt.Sprintf("the newest applied change is %d s old with %s of log waiting (limit %s)", s.LagSeconds, size(s.LagBytes), e.MaxLag))
		}
	}
	return st, nil
}

// A quiet pipeline's mark follows the log every few seconds, so a little log is
// always ahead of it (checkpoints, other databases' commits): 16 MiB, one log
// segment, is not lag.
const lagBytesNoise = 16 << 20

// takenFiles counts the files that were taken, by relation.
func takenFiles(ctx context.Context, m sink.Memory) ([]filesStatus, error) {
	list, err := m.Files(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which files were taken: %w", err)
	}
	by := map[string]*filesStatus{}
	for _, f := range list {
		name := f.Relation.String()
		if by[name] == nil {
			by[name] = &filesStatus{Relation: name}
		}
		if f.Ends() {
			by[name].Ended = true
		} else {
			by[name].Taken++
		}
	}
	out := []filesStatus{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[name])
	}
	return out, nil
}

// sourceState asks the source, and matches the flows with its tables if some have
// sequence_by: their types say how a sequence reads. bound is nil where they do not
// match; the pipeline itself says why.
// kept is nil where nothing is kept for rewind points.
func (e *environment) sourceState(ctx context.Context, mark checkpoint.Mark) (state source.State, kept *source.Kept, bound []pipeline.Bound, err error) {
	src, err := e.openSources(ctx)
	if err != nil {
		return state, nil, nil, err
	}
	defer src.close(ctx)
	pipeline.Locate(src.main, mark)
	if state, err = src.main.State(ctx); err != nil {
		return state, nil, nil, err
	}
	if kept, err = keptBy(ctx, src.log); err != nil {
		return state, nil, nil, err
	}
	if slices.ContainsFunc(e.Specs(), func(f flow.Spec) bool { return f.ByEvents() }) {
		bound, _, err = e.bind(ctx, src, anything)
		if err != nil {
			e.log.Debug("the flows do not match the source", "error", err.Error())
		}
	}
	return state, kept, bound, nil
}

func (a *app) printStatus(st *status) {
	w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
	fmt.Fprintf(w, "pipeline\t%s (%s)\n", st.Pipeline, st.Phase)
	if p := st.Paused; p != nil {
		fmt.Fprintf(w, "paused\tsince %s, by %s; `tailrace resume` lets it go on\n", p.Since.UTC().Format(time.RFC3339), p.By)
	}
	at := st.Position
	if st.CommitTime != nil {
		at += ", newest applied commit " + st.CommitTime.UTC().Format(time.RFC3339Nano)
	}
	fmt.Fprintf(w, "mark\t%s\n", at)
	switch s := st.Source; {
	case s == nil:
		fmt.Fprintf(w, "source\t%s\n", st.SourceError)
	case s.LogBegins != "":
		fmt.Fprintf(w, "source\tlog reaches from %s to %s\n", s.LogBegins, s.Head)
		fmt.Fprintf(w, "lag\t%s, %d s\n", size(s.LagBytes), s.LagSeconds)
	case s.Slot == "": // files keep nothing for us
		fmt.Fprintf(w, "source\tfiles\n")
	default:
		reads := "nothing reads it"
		if s.SlotActive {
			reads = "being read"
		}
		fmt.Fprintf(w, "source\tlog ends at %s\n", s.Head)
		fmt.Fprintf(w, "slot\t%s, %s, confirmed %s, keeps %s of log\n", s.Slot, reads, s.Confirmed, size(s.RetainedBytes))
		if s.BesideBytes > 0 {
			fmt.Fprintf(w, "copy\ta table is read beside the stream, which keeps %s of log\n", size(s.BesideBytes))
		}
		fmt.Fprintf(w, "lag\t%s, %d s\n", size(s.LagBytes), s.LagSeconds)
	}
	fmt.Fprintf(w, "continuity\t%s\n", st.Continuity)
	if st.Rewind != nil {
		fmt.Fprintf(w, "rewind\t%s\n", st.Rewind.line())
	}
	w.Flush()
	if len(st.Tables) > 0 {
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "TARGET\tFROM\tPHASE\tSINCE")
		for _, t := range st.Tables {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", t.Target, t.Source, t.Phase, t.Since)
		}
		w.Flush()
	}
	// The only flow into a target stands where its target does.
	flows := slices.DeleteFunc(slices.Clone(st.Flows), func(f flowStatus) bool {
		others := func(o flowStatus) bool { return o.Target == f.Target && o.Flow != f.Flow }
		return !slices.ContainsFunc(st.Flows, others) && f.Phase != string(checkpoint.Left)
	})
	if len(flows) > 0 {
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "FLOW\tINTO\tFROM\tPHASE\tSINCE")
		for _, f := range flows {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", oneLine(f.Flow), f.Target, dash(f.Source), f.Phase, f.Since)
		}
		w.Flush()
	}
	if len(st.Files) > 0 {
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "RELATION\tFILES TAKEN")
		for _, f := range st.Files {
			ended := ""
			if f.Ended {
				ended = ", to its end"
			}
			fmt.Fprintf(w, "%s\t%d%s\n", oneLine(f.Relation), f.Taken, ended)
		}
		w.Flush()
	}
	if len(st.Sequenced) > 0 {
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "TARGET\tREMEMBERED\tTOMBSTONES\tTRUNCATED AT\tHORIZON")
		for _, m := range st.Sequenced {
			about := ""
			if m.Estimated {
				about = "about "
			}
			fmt.Fprintf(w, "%s\t%s%d\t%[2]s%[4]d\t%[5]s\t%[6]s\n", m.Target, about, m.Remembered, m.Tombstones, dash(m.Truncated), dash(m.Horizon))
		}
		w.Flush()
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "TARGET\tLATE\tTIES\tDUPLICATES\tTRUNCATED\tFORGOTTEN\tUNKNOWN ROWS\tPOSSIBLY RESURRECTED")
		for _, m := range st.Sequenced {
			c := m.Counts
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", m.Target, c.Late, c.Ties, c.Duplicates, c.Truncated, c.Forgotten, c.Unknown, c.Resurrected)
		}
		w.Flush()
	}
	a.printSnapshots(st.Snapshots)
	a.printRuns(st.Trigger)
	a.printFeeds(st.Feeds)
	if len(st.Expected) > 0 {
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "FLOW\tEXPECTATION\tACTION\tEVENTS")
		for _, e := range st.Expected {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", oneLine(e.Flow), oneLine(e.Expectation), e.Action, e.Events)
		}
		w.Flush()
	}
	if len(st.Gaps) > 0 {
		fmt.Fprintln(a.out)
		w = tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
		fmt.Fprintln(w, "GAP IN\tFROM\tTO\tRECORDED\tREASON")
		for _, g := range st.Gaps {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", g.Target, g.From, g.To, g.Recorded.UTC().Format(time.RFC3339), oneLine(g.Reason))
		}
		w.Flush()
	}
	for _, p := range st.Problems {
		fmt.Fprintf(a.out, "\nproblem: %s\n", p)
	}
}

// dash stands for what there is not.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return oneLine(s)
}
