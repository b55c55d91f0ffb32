package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"tailrace/sink"
)

// fedStatus is how much a target's change feed holds.
type fedStatus struct {
	Target    string     `json:"target"`
	Table     string     `json:"table"` // in schema _tailrace
	Rows      int64      `json:"rows"`
	Estimated bool       `json:"estimated,omitempty"` // rows is
	Bytes     int64      `json:"bytes"`               // on disk
	Oldest    *time.Time `json:"oldest,omitempty"`    // _commit_time of the oldest change; none: it has none
}

// fed adds the change feeds, also those whose flow keeps none any more.
func (st *status) fed(ctx context.Context, dst sink.Writer) error {
	feeds, ok := dst.(sink.Feeds)
	if !ok {
		return nil
	}
	list, err := feeds.Feeds(ctx)
	if err != nil {
		return err
	}
	for _, f := range list {
		one := fedStatus{Target: f.Target.String(), Table: f.Table, Rows: f.Rows, Estimated: f.Estimated, Bytes: f.Bytes}
		if !f.Oldest.IsZero() {
			at := f.Oldest.UTC()
			one.Oldest = &at
		}
		st.Feeds = append(st.Feeds, one)
	}
	return nil
}

func (a *app) printFeeds(all []fedStatus) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	w := tabwriter.NewWriter(a.out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TARGET\tCHANGE FEED\tROWS\tSIZE\tOLDEST CHANGE")
	for _, f := range all {
		about, oldest := "", "-"
		if f.Estimated {
			about = "about "
		}
		if f.Oldest != nil {
			oldest = f.Oldest.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t_tailrace.%s\t%s%d\t%s\t%s\n", f.Target, oneLine(f.Table), about, f.Rows, size(f.Bytes), oldest)
	}
	w.Flush()
}
