// Command tailrace replicates tables: one consistent copy, then every change,
// exactly once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"tailrace/internal/fault"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process, for tests. Machine output goes to out,
// everything else to errs.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: in, out: out, errs: errs}
	root := a.command()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return a.code
	}
	var usage *fault.Error
	if !errors.As(err, &usage) && a.started == false {
		// cobra's own complaint: an unknown command or flag.
		fmt.Fprintf(errs, "tailrace: %v\n", err)
		return fault.ExitUsage
	}
	fmt.Fprintf(errs, "tailrace: %v\n", err)
	return fault.ExitCode(err)
}

// app is what the commands share.
type app struct {
	in         io.Reader
	out, errs  io.Writer
	configPath string
	started    bool // a command's own code runs: errors are its, not the command line's
	code       int  // exit code of a command that succeeded with findings
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "tailrace",
		Short: "Replicate PostgreSQL tables into DuckDB or PostgreSQL: a consistent copy, then every change, exactly once",
		Long: `tailrace copies tables once, consistently, then follows the source's log and
applies every change to the destination exactly once, as current rows (type 1) or
as history (type 2). It can be killed at any moment.

Exit codes: 0 done, 1 findings or differences, 2 wrong usage or configuration,
3 an operator has to act, 4 unavailable after retries.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.started = true
		},
	}
	root.AddCommand(
		a.runCommand(), a.backfillCommand(), a.checkCommand(), a.planCommand(), a.statusCommand(),
		a.showCommand(), a.queryCommand(), a.snapshotCommand(), a.pauseCommand(), a.resumeCommand(), a.triggerCommand(), a.verifyCommand(), a.resyncCommand(), a.refreshCommand(), a.explainCommand(), a.quarantineCommand(), a.applyEventCommand(), a.checkpointCommand(), a.rewindCommand(), a.replayCommand(), a.teardownCommand(), a.demoCommand(), a.versionCommand(),
	)
	return root
}

// configured adds -c to a command that needs a configuration.
func (a *app) configured(c *cobra.Command) *cobra.Command {
	c.Flags().StringVarP(&a.configPath, "config", "c", "tailrace.yaml", "configuration file")
	return c
}
