package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tailrace/internal/change"
	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

func (a *app) explainCommand() *cobra.Command {
	var flow, key string
	var values bool
	c := &cobra.Command{
		Use:   "explain",
		Short: "Say why a sequenced target shows what it shows of one key",
		Long: `explain prints the events that are remembered of one key, in the order in which
they count, with what each led to, and the rule that decided. It only reads.`,
		Example: `  tailrace explain -c shop.yaml --flow users --key 124
  tailrace explain -c shop.yaml --flow lines --key 17,2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flow == "" || !cmd.Flags().Changed("key") {
				return fault.Badly("explain needs --flow and --key")
			}
			env, err := a.load()
			if err != nil {
				return err
			}
			text, err := env.look(cmd.Context(), askExplain, explainRequest{flow, key, values}, nil)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.out, text)
			return err
		},
	}
	c.Flags().StringVar(&flow, "flow", "", "name of the flow, or its target")
	c.Flags().StringVar(&key, "key", "", "values of the key columns, in the target's order, with commas between; a value with a comma in double quotes")
	c.Flags().BoolVar(&values, "show-values", false, "print the rows' values too")
	return a.configured(c)
}

type explainRequest struct {
	Flow   string `json:"flow"`
	Key    string `json:"key"`
	Values bool   `json:"values,omitempty"`
}

var askExplain = question{kind: kindExplain, limit: statusMost,
	answer: func(ctx context.Context, e *environment, dst sink.Writer, argument []byte, _ control.Rows) (string, error) {
		var asked explainRequest
		if err := understand(argument, &asked); err != nil {
			return "", err
		}
		src, err := e.openSources(ctx)
		if err != nil {
			return "", err
		}
		defer src.close(ctx)
		bound, _, err := e.bind(ctx, src, anything)
		if err != nil {
			return "", err
		}
		story, err := pipeline.Explain(ctx, dst, bound, asked.Flow, func(columns int) ([]string, error) { return splitKey(asked.Key, columns) })
		if err != nil {
			return "", err
		}
		var text strings.Builder
		err = printStory(&text, story, asked.Key, asked.Values)
		return text.String(), err
	}}

// splitKey takes a key apart. A single value is taken as it is.
func splitKey(key string, columns int) ([]string, error) {
	if columns == 1 {
		return []string{key}, nil
	}
	r := csv.NewReader(strings.NewReader(key))
	values, err := r.Read()
	if err == nil {
		if _, more := r.Read(); more != io.EOF {
			err = errors.New("it has several lines")
		}
	}
	if err != nil {
		return nil, fault.Badly("--key: %v", err)
	}
	return values, nil
}

func printStory(w io.Writer, s *pipeline.KeyStory, key string, values bool) error {
	x := s.Explanation
	names := make([]string, 0, 1)
	for _, k := range s.Target.Keys() {
		names = append(names, s.Target.Columns[k].Name)
	}
	kind := fmt.Sprintf("type %d", s.Target.Kind)
	if s.Target.Kind == scd.Bitemporal {
		kind = "bitemporal"
	}
	fmt.Fprintf(w, "target %s (%s), key %s = %s\n", s.Target.Name, kind, strings.Join(names, ","), oneLine(key))
	fmt.Fprintf(w, "rule: %s\n", x.Rule)
	for _, n := range x.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	for _, q := range s.Quarantine {
		fmt.Fprintf(w, "note: event %d of this key is in quarantine (%s): %s\n", q.ID, oneLine(q.Position), oneLine(q.Reason))
	}
	if len(x.Events) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	system := func(cell string) string { // a column that other targets do not have
		if s.Target.Kind == scd.Bitemporal {
			return oneLine(cell) + "\t"
		}
		return ""
	}
	fmt.Fprintln(table, "SEQUENCE\t"+system("SYSTEM")+"EVENT\tFROM\tTIME\tLED TO")
	for i := range x.Events {
		e := &x.Events[i]
		what := "write"
		switch {
		case e.Tombstone:
			what = "delete (tombstone)"
		case e.Delete:
			what = "delete"
		}
		fmt.Fprintf(table, "%s\t%s%s\t%s\t%s\t%s\n", oneLine(e.Sequence), system(e.System), what, oneLine(e.From), e.Time.Format(time.RFC3339Nano), e.Led)
	}
	if err := table.Flush(); err != nil || !values {
		return err
	}
	fmt.Fprintln(w)
	for i := range x.Events {
		if err := printValues(w, s.Target, &x.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

func printValues(w io.Writer, t *scd.Target, e *sequenced.Told) error {
	if e.Row == nil {
		what := "its values are in the target alone"
		if e.Delete {
			what = "a delete has none"
		}
		fmt.Fprintf(w, "%s (%s): %s\n", oneLine(e.Sequence), oneLine(e.From), what)
		return nil
	}
	for _, r := range []struct {
		what string
		row  change.Row
	}{{"wrote", e.Row}, {"shown with what it inherits", e.Shown}} {
		if r.row == nil {
			continue
		}
		cells, err := r.row.Values(nil, len(t.Columns))
		if err != nil {
			return fault.Corrupted("a remembered row of %s cannot be read: %v", t.Name, err)
		}
		var list []string
		for i, v := range cells {
			switch v.State {
			case change.Absent: // not written
			case change.Null:
				list = append(list, t.Columns[i].Name+"=NULL")
			default:
				list = append(list, t.Columns[i].Name+"="+oneLine(string(v.Data)))
			}
		}
		fmt.Fprintf(w, "%s (%s) %s: %s\n", oneLine(e.Sequence), oneLine(e.From), r.what, strings.Join(list, ", "))
	}
	return nil
}
