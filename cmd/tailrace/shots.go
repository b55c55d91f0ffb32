package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"tailrace/internal/pipeline"
)

// snapshotStatus is the newest snapshot of a target that has a snapshot flow.
type snapshotStatus struct {
	Target  string     `json:"target"`
	Version string     `json:"version,omitempty"` // empty: none yet
	Taken   *time.Time `json:"taken,omitempty"`
	Rows    int64      `json:"rows"`

	Failed   string     `json:"failed,omitempty"` // why a later one was not applied
	FailedAt *time.Time `json:"failed_at,omitempty"`
}

// snapshot adds what is remembered of a target's snapshots.
func (st *status) snapshot(m *pipeline.Memory) {
	if m.Base.IsZero() && m.Failed.Reason == "" {
		return
	}
	s := snapshotStatus{Target: m.Target.String(), Version: string(m.Base.Version.Data), Rows: m.Base.Rows, Failed: m.Failed.Reason}
	if !m.Base.IsZero() {
		at := time.UnixMicro(m.Base.Taken).UTC()
		s.Taken = &at
	}
	if s.Failed != "" {
		at := time.UnixMicro(m.Failed.At).UTC()
		s.FailedAt = &at
		st.Problems = append(st.Problems, fmt.Sprintf("target %s: a snapshot was not applied at %s: %s", s.Target, at.Format(time.RFC3339), s.Failed))
	}
	st.Snapshots = append(st.Snapshots, s)
}

func (a *app) printSnapshots(all []snapshotStatus) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TARGET\tSNAPSHOT VERSION\tTAKEN\tROWS")
	for _, s := range all {
		taken := "-"
		if s.Taken != nil {
			taken = s.Taken.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", s.Target, dash(s.Version), taken, s.Rows)
	}
	w.Flush()
}
