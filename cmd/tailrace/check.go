package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/pipeline"
	"tailrace/sink"
	"tailrace/source"
)

func (a *app) checkCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Look for everything that would stop the pipeline; exit 1 if something does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			findings, err := env.check(cmd.Context())
			if err != nil {
				return err
			}
			blocking := 0
			for _, f := range findings {
				word := "note"
				if f.Blocks {
					word = "BLOCKS"
					blocking++
				}
				fmt.Fprintf(a.out, "%-6s  %s\n", word, f.What)
				if f.Remedy != "" {
					fmt.Fprintf(a.out, "        remedy: %s\n", strings.ReplaceAll(f.Remedy, "\n", "\n        "))
				}
			}
			if blocking > 0 {
				fmt.Fprintf(a.out, "%d of %d findings block\n", blocking, len(findings))
				a.code = fault.ExitFindings
				return nil
			}
			fmt.Fprintf(a.out, "nothing blocks (%d notes)\n", len(findings))
			return nil
		},
	}
	return a.configured(c)
}

// check gathers the findings of all rooms; what cannot be looked at is an error.
func (e *environment) check(ctx context.Context) ([]sink.Finding, error) {
	src, err := e.openSources(ctx)
	if err != nil {
		return nil, err
	}
	defer src.close(ctx)
	bound, findings, err := e.bind(ctx, src, nothing)
	for _, n := range e.sqlNotes() {
		findings = append(findings, sink.Finding{What: n})
	}
	if err != nil {
		if fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" {
			return nil, err
		}
		findings = append(findings, asFinding(err))
	}
	atSource, err := pipeline.CheckSources(ctx, src.log, src.files, bound)
	if err != nil {
		return nil, err
	}
	for _, f := range atSource {
		findings = append(findings, sink.Finding{Blocks: f.Blocks, What: f.What, Remedy: f.Remedy})
	}
	for _, b := range bound {
		for _, n := range b.Notes {
			findings = append(findings, sink.Finding{What: n})
		}
	}
	dst, err := e.openSink(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the destination: %w", err)
	}
	defer dst.Close(ctx)
	mark, err := dst.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the mark: %w", err)
	}
	findings = append(findings, e.hydrationFindings(mark, bound)...)
	looked := map[change.Name]bool{}
	for _, b := range bound {
		if looked[b.Target.Name] { // several flows may write it
			continue
		}
		looked[b.Target.Name] = true
		p, err := dst.Plan(ctx, b.Target)
		if err != nil {
			return nil, fmt.Errorf("look at target %s: %w", b.Target.Name, err)
		}
		findings = append(findings, problems(bound, &b, p)...)
		if _, taken := e.hydration(mark); p.Rows && mark.Phase == checkpoint.None && !taken {
			findings = append(findings, sink.Finding{
				Blocks: true, What: fmt.Sprintf("target %s holds rows, and no mark says that they are this pipeline's", b.Target.Name),
				Remedy: "empty or drop it, choose another target, or start with --overwrite to replace its rows",
			})
		}
	}
	pipeline.Locate(src.main, mark)
	state, err := src.main.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the source's state: %w", err)
	}
	facts, err := pipeline.WithKept(ctx, pipeline.DecideState(state), src.main)
	if err != nil {
		return nil, err
	}
	if _, err := checkpoint.DecideBeside(mark, facts, func() (checkpoint.Mark, error) { return dst.State(ctx) }); err != nil {
		findings = append(findings, asFinding(err))
	}
	kept, err := e.rewindFindings(ctx, src, dst)
	return append(findings, kept...), err
}

// rewindFindings are what keeps rewind points from being made, or from being replayed.
func (e *environment) rewindFindings(ctx context.Context, src sources, dst sink.Writer) (findings []sink.Finding, err error) {
	if !e.Rewind.On() {
		return nil, nil
	}
	if _, ok := dst.(sink.Rewinds); !ok {
		findings = append(findings, sink.Finding{Blocks: true, What: "this destination keeps no rewind points", Remedy: "take `rewind` out of the configuration"})
	}
	keeper, ok := src.log.(source.Keeper)
	if !ok {
		return findings, nil
	}
	atSource, err := keeper.CheckKeep(ctx, e.Rewind.Keep)
	if err != nil {
		return nil, fmt.Errorf("check what the source keeps for rewind points: %w", err)
	}
	for _, f := range atSource {
		findings = append(findings, sink.Finding{Blocks: f.Blocks, What: f.What, Remedy: f.Remedy})
	}
	return findings, nil
}

// problems are what stands against a target; that nothing is remembered of its rows
// only where run would not mend it.
func problems(bound []pipeline.Bound, b *pipeline.Bound, p sink.Plan) []sink.Finding {
	if f := pipeline.Abandons(p); f != nil {
		f.What = fmt.Sprintf("%s: %s", b.Target.Name, f.What)
		return append(p.Problems, *f)
	}
	if !pipeline.Moves(bound, b, p) {
		return p.Problems
	}
	return append(p.Problems[:len(p.Problems)-1:len(p.Problems)-1], sink.Finding{
		What:   fmt.Sprintf("target %s was kept in the order of the log; from the next run on it is kept by the position of events", b.Target.Name),
		Remedy: "none is needed: its rows stay, and are remembered in one transaction",
	})
}

// nothing knows of no target: what cannot be followed is a finding.
func nothing(*flow.Spec, change.Name) bool { return false }

// anything is known: what cannot be followed concerns itself alone.
func anything(*flow.Spec, change.Name) bool { return true }

func asFinding(err error) sink.Finding {
	var f *fault.Error
	if errors.As(err, &f) {
		what := f.Op
		if f.Err != nil {
			what += ": " + f.Err.Error()
		}
		return sink.Finding{Blocks: true, What: what, Remedy: f.Remedy}
	}
	return sink.Finding{Blocks: true, What: err.Error()}
}

func (a *app) planCommand() *cobra.Command {
	var inSQL bool
	c := &cobra.Command{
		Use:   "plan",
		Short: "Print what run would create or alter, and what is not replicated; changes nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			if inSQL {
				return a.planSQL(env)
			}
			return a.plan(cmd.Context(), env)
		},
	}
	c.Flags().BoolVar(&inSQL, "sql", false, "print what the files of `sql` say, in canonical form and as YAML; connects to nothing")
	return a.configured(c)
}

func (a *app) plan(ctx context.Context, env *environment) error {
	src, err := env.openSources(ctx)
	if err != nil {
		return err
	}
	defer src.close(ctx)
	bound, findings, err := env.bind(ctx, src, nothing)
	if err != nil {
		return err
	}
	dst, err := env.openSink(ctx)
	if err != nil {
		return fmt.Errorf("open the destination: %w", err)
	}
	defer dst.Close(ctx)
	mark, err := dst.State(ctx)
	if err != nil {
		return fmt.Errorf("read the mark: %w", err)
	}
	pipeline.Locate(src.main, mark)
	state, err := src.main.State(ctx)
	if err != nil {
		return fmt.Errorf("read the source's state: %w", err)
	}
	fmt.Fprintln(a.out, "-- on the source")
	statements, err := src.main.PlanPublications(ctx, pipeline.Followed(bound))
	if err != nil {
		return fmt.Errorf("plan the publications: %w", err)
	}
	for _, s := range statements {
		fmt.Fprintf(a.out, "%s;\n", strings.TrimSuffix(s, ";"))
	}
	if state.Keepless {
		fmt.Fprintln(a.out, "-- nothing: files are only read")
	} else if state.Slotless {
		fmt.Fprintf(a.out, "-- nothing: its log is only read; it reaches from %s to %s\n", state.Oldest, state.Head)
	} else if state.Slot.Exists {
		fmt.Fprintf(a.out, "-- replication slot %s exists\n", state.Slot.Name)
	} else {
		fmt.Fprintf(a.out, "-- create replication slot %s (pgoutput)\n", state.Slot.Name)
	}
	if feeds := pipeline.Feeds(bound); src.log != nil && len(feeds) > 0 {
		fmt.Fprintln(a.out, "-- files are only read:")
		for _, f := range feeds {
			fmt.Fprintf(a.out, "--   %s\n", oneLine(f.Table.Name.String()))
		}
	}
	facts, err := pipeline.WithKept(ctx, pipeline.DecideState(state), src.main)
	if err != nil {
		return err
	}
	if d, err := checkpoint.DecideBeside(mark, facts, func() (checkpoint.Mark, error) { return dst.State(ctx) }); err != nil {
		fmt.Fprintf(a.out, "-- would be refused: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n-- "))
	} else {
		action := d.Action.String()
		if note, taken := env.hydration(mark); taken {
			action = note
		}
		if d.Moved != nil {
			fmt.Fprintf(a.out, "-- another server of the same history than the mark's: the mark at %s becomes %s\n", mark.Position, d.From)
		}
		fmt.Fprintf(a.out, "-- then: %s\n", action)
	}
	fmt.Fprintln(a.out, "\n-- in the destination")
	planned := map[change.Name]bool{}
	for _, b := range bound {
		var p sink.Plan
		if !planned[b.Target.Name] { // several flows may write it
			if p, err = dst.Plan(ctx, b.Target); err != nil {
				return fmt.Errorf("look at target %s: %w", b.Target.Name, err)
			}
		}
		planned[b.Target.Name] = true
		kind := fmt.Sprintf("type %d", b.Target.Kind)
		switch {
		case b.Target.AppendOnly:
			kind = "append-only"
		case b.Target.Bitemporal != nil:
			kind = "bitemporal"
		}
		fmt.Fprintf(a.out, "-- %s -> %s (%s)\n", b.Relation.Table.Name, b.Target.Name, kind)
		for _, s := range p.DDL {
			fmt.Fprintf(a.out, "%s;\n", strings.TrimSuffix(s, ";"))
		}
		for _, f := range problems(bound, &b, p) {
			fmt.Fprintf(a.out, "-- problem: %s; remedy: %s\n", f.What, f.Remedy)
		}
		for _, n := range append(b.Notes, b.Relation.Notes...) {
			fmt.Fprintf(a.out, "-- note: %s\n", n)
		}
	}
	for _, f := range findings {
		fmt.Fprintf(a.out, "-- %s; remedy: %s\n", f.What, f.Remedy)
	}
	for _, n := range env.sqlNotes() {
		fmt.Fprintf(a.out, "-- note: %s\n", oneLine(n))
	}
	return nil
}
