package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tailrace/internal/fault"
	"tailrace/sink"
)

func (a *app) teardownCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "teardown",
		Short: "Drop slot, publications and bookkeeping of exactly this pipeline; targets stay",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := a.load()
			if err != nil {
				return err
			}
			if !yes {
				fmt.Fprintf(a.errs, "Drop slot, publications and bookkeeping of pipeline %q? Changes after this cannot be followed without a new copy. [y/N] ", env.Pipeline)
				answer, _ := bufio.NewReader(a.in).ReadString('\n')
				if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
					return fault.Badly("not confirmed; pass --yes to do it without asking")
				}
			}
			ctx := cmd.Context()
			dst, err := env.openSink(ctx)
			if err != nil {
				return fmt.Errorf("open the destination: %w", err)
			}
			defer dst.Close(ctx)
			me, err := sink.ThisProcess()
			if err != nil {
				return err
			}
			if err := dst.Own(ctx, me, 0); err != nil {
				return fmt.Errorf("take ownership of pipeline %s: %w", env.Pipeline, err)
			}
			src, err := env.openSources(ctx)
			if err != nil {
				return err
			}
			defer src.close(ctx)
			// The slot first: it is what costs the source something.
			if err := src.main.Drop(ctx); err != nil {
				return fmt.Errorf("drop slot and publications: %w", err)
			}
			if err := dst.Teardown(ctx); err != nil {
				return fmt.Errorf("remove the bookkeeping: %w", err)
			}
			fmt.Fprintf(a.out, "pipeline %s is gone; its targets are left as they are\n", env.Pipeline)
			return nil
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return a.configured(c)
}
