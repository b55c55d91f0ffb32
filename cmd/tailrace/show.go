package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/scd"
	"tailrace/sink"
)

func (a *app) showCommand() *cobra.Command {
	var format, asOf, knownAt string
	c := &cobra.Command{
		Use:   "show TARGET",
		Short: "Print a target's rows, ordered by key (and start)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "table" && format != "csv" && format != "json" {
				return fault.Badly("--format is table, csv or json, not %q", format)
			}
			env, err := a.load()
			if err != nil {
				return err
			}
			p := newPrinter(format, a.out)
			_, err = env.look(cmd.Context(), askShow, showRequest{args[0], asOf, knownAt}, p.row)
			return errors.Join(err, p.end())
		},
	}
	c.Flags().StringVar(&format, "format", "table", "table, csv (RFC 4180; NULL is empty, an empty string is \"\") or json (one object a line)")
	c.Flags().StringVar(&asOf, "as-of", "", "only versions valid at this instant, e.g. 2026-01-31T12:00:00Z, or value of the sequence, of several columns {\"a\": 1, \"b\": 2} or (1, 2)")
	c.Flags().StringVar(&knownAt, "known-at", "", "of a bitemporal target: only rows that were believed at this value of its system sequence")
	return a.configured(c)
}

type showRequest struct {
	Target  string `json:"target"`
	AsOf    string `json:"as_of,omitempty"`
	KnownAt string `json:"known_at,omitempty"`
}

var askShow = question{kind: kindShow,
	answer: func(ctx context.Context, e *environment, dst sink.Writer, argument []byte, rows control.Rows) (string, error) {
		var asked showRequest
		if err := understand(argument, &asked); err != nil {
			return "", err
		}
		t, err := e.target(ctx, asked.Target)
		if err != nil {
			return "", err
		}
		if asked.AsOf != "" && t.Kind != scd.Type2 && t.Bitemporal == nil {
			return "", fault.Badly("--as-of needs a target with history (stored_as_scd_type: 2 or bitemporal)")
		}
		if asked.KnownAt != "" && t.Bitemporal == nil {
			return "", fault.Badly("--known-at needs a target that keeps what was believed (stored_as_scd_type: bitemporal)")
		}
		if err := dst.Show(ctx, sink.ShowQuery{Target: t, AsOf: asked.AsOf, KnownAt: asked.KnownAt}, rows); err != nil {
			return "", fmt.Errorf("read %s: %w", t.Name, err)
		}
		return "", nil
	}}

// target finds the target that a name means. The flows say which columns are its key,
// so the source is asked for its catalogue.
func (e *environment) target(ctx context.Context, name string) (*scd.Target, error) {
	src, err := e.openSources(ctx)
	if err != nil {
		return nil, err
	}
	defer src.close(ctx)
	bound, _, err := e.bind(ctx, src, anything)
	if err != nil {
		return nil, err
	}
	schema, table := flow.SplitName(name)
	var found *scd.Target
	var names []string
	for _, b := range bound {
		names = append(names, b.Target.Name.String())
		if b.Target.Name.Table == table && (schema == "" || schema == b.Target.Name.Schema) {
			if found != nil && found.Name != b.Target.Name { // several flows may write one
				return nil, fault.Badly("target %s is not unique; write its schema too", name)
			}
			found = b.Target
		}
	}
	if found == nil {
		return nil, fault.Badly("no flow has target %s; targets are %s", name, strings.Join(names, ", "))
	}
	return found, nil
}

// printer writes rows in one of the formats. The first row is the header.
type printer struct {
	format string
	w      *bufio.Writer
	table  *tabwriter.Writer
	rows   int
	header []string
}

// alignedRows is how many rows of a table share their columns' widths: they wait in
// memory for each other.
const alignedRows = 10_000

func newPrinter(format string, w io.Writer) *printer {
	buffered := bufio.NewWriterSize(w, 64<<10)
	return &printer{format: format, w: buffered, table: tabwriter.NewWriter(buffered, 2, 8, 2, ' ', 0)}
}

func (p *printer) row(cells []*string) error {
	first := p.header == nil
	if first {
		p.header = []string{}
		for _, c := range cells {
			p.header = append(p.header, *c)
		}
	}
	switch p.format {
	case "csv":
		fields := make([]string, len(cells))
		for i, c := range cells {
			switch {
			case c == nil:
			case *c == "" || strings.ContainsAny(*c, ",\"\r\n"):
				fields[i] = `"` + strings.ReplaceAll(*c, `"`, `""`) + `"`
			default:
				fields[i] = *c
			}
		}
		_, err := io.WriteString(p.w, strings.Join(fields, ",")+"\r\n")
		return err
	case "json":
		if first {
			return nil
		}
		var b strings.Builder
		for i, c := range cells {
			sep := ","
			if i == 0 {
				sep = "{"
			}
			name, err := json.Marshal(p.header[i])
			if err != nil {
				return err
			}
			value, err := json.Marshal(c)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%s%s:%s", sep, name, value)
		}
		_, err := io.WriteString(p.w, b.String()+"}\n")
		return err
	}
	fields := make([]string, len(cells))
	for i, c := range cells {
		if c == nil {
			fields[i] = "NULL"
		} else {
			fields[i] = strings.NewReplacer("\t", `\t`, "\n", `\n`, "\r", `\r`).Replace(*c)
		}
	}
	if _, err := fmt.Fprintln(p.table, strings.Join(fields, "\t")); err != nil {
		return err
	}
	if p.rows++; p.rows%alignedRows == 0 {
		return p.table.Flush()
	}
	return nil
}

func (p *printer) end() error { return errors.Join(p.table.Flush(), p.w.Flush()) }
