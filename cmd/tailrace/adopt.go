package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/sink"
)

// beginning is how backfill is to begin a pipeline, and what came of it.
type beginning struct {
	prepare, adopt bool
	until          string
	how            pipeline.Beginning
	begun          *pipeline.Begun
}

func (b *beginning) took(begun pipeline.Begun) { b.begun = &begun }

func (b *beginning) flags(c *cobra.Command) {
	c.Flags().BoolVar(&b.prepare, "prepare", false, "make slot and mark, and copy nothing: a backup that is taken after that is restored, then --adopt")
	c.Flags().BoolVar(&b.adopt, "adopt", false, "take the rows that targets hold: a backup restored after --prepare, else rows that equal the source")
	c.Flags().StringVar(&b.until, "until", "", "with --adopt: the source's position when the backup had ended (default: the present one)")
}

// settle decides between the flags and hydrate.mode, which declares.
func (b *beginning) settle(declared pipeline.Beginning, mode *pipeline.Mode) (err error) {
	b.how, mode.Asked = declared, b.prepare || b.adopt
	switch {
	case b.prepare && b.adopt:
		return fault.Badly("--prepare comes before the backup, --adopt after it")
	case mode.Asked && (mode.Overwrite || mode.NoFollow):
		return fault.Badly("--prepare and --adopt copy nothing: they go with neither --overwrite nor --no-follow")
	case b.prepare:
		b.how = pipeline.ByPreparing
	case b.adopt:
		b.how = pipeline.ByAdopting
	case mode.Overwrite:
		b.how = pipeline.ByCopy
	}
	if b.until == "" {
		return nil
	}
	if b.how != pipeline.ByAdopting {
		return fault.Badly("--until says where the backup ended that --adopt takes over")
	}
	if mode.Until, err = change.ParsePosition(b.until); err != nil {
		return fault.Badly("--until %q is no position such as 0/16B3748: %v", b.until, err)
	}
	return nil
}

// reportBegun prints what came of a beginning without a copy, and what is next.
func (a *app) reportBegun(b *beginning) error {
	switch {
	case b.begun != nil && b.begun.Prepared:
		a.printPrepared(b.begun)
	case b.begun != nil:
		a.printAdopted(b.begun)
	case b.prepare || b.adopt:
		return fault.Refuse("give the same command again", "stopped before it was done")
	}
	return nil
}

func (a *app) printPrepared(b *pipeline.Begun) {
	keeps, dump, now, unit := "slot "+b.Slot+" keeps the source's log from there on", "pg_dump", "the source's pg_current_wal_insert_lsn()", "LSN"
	if b.Slot == "" {
		keeps, dump, now, unit = "the source keeps its log by itself: see that it reaches back to here until step 2", "mariadb-dump, mysqldump", "the log's file and offset as `tailrace status` spells them", "POSITION"
	}
	fmt.Fprintf(a.out, `prepared at %s
%s; nothing was copied.
next:
  1. Begin a backup of the source's tables now or later (%s, a base backup, a
     snapshot of a disk; from a standby when it has replayed %[1]s), and restore the
     tables into the destination. Leave second unique indexes for later.
  2. tailrace backfill --adopt
     With --until %[5]s, %[4]s
     when the backup had ended, tables are live sooner.
  3. tailrace run
Meanwhile nobody writes the targets or alters the source's tables. `+"`tailrace status`"+` shows
what the source keeps of its log; `+"`tailrace teardown`"+` gives the beginning up.
`, b.Position, keeps, dump, now, unit)
}

func (a *app) printAdopted(b *pipeline.Begun) {
	var t tally
	for _, r := range b.Compared {
		a.printComparison(r, &t)
	}
	if b.Refused() {
		fmt.Fprintf(a.out, "%d differences of %d rows: nothing was adopted, and nothing is left on the source\n", t.differences+int64(t.violations), t.rows)
		fmt.Fprintln(a.out, "next: make the targets equal, while nobody writes the source; or begin with `tailrace backfill --prepare`, which lets it be written; or name the targets with --table: those that differ are parked then")
		a.code = fault.ExitFindings
		return
	}
	fmt.Fprintf(a.out, "adopted at %s: %s\n", b.Position, listed(b.Adopted))
	if !b.Until.IsZero() {
		fmt.Fprintf(a.out, "they are catching until the mark has reached %s, the end of the backup; then compare them with `tailrace verify`\n", b.Until)
	}
	if len(b.Parked) > 0 {
		fmt.Fprintf(a.out, "parked, because they differ: %s\n", listed(b.Parked))
	}
	if len(b.Left) > 0 {
		fmt.Fprintf(a.out, "not named; run makes them, or copies into them if they are empty: %s\n", listed(b.Left))
	}
	fmt.Fprintln(a.out, "next: tailrace run")
}

func listed(names []change.Name) string {
	if len(names) == 0 {
		return "none"
	}
	var out []string
	for _, n := range names {
		out = append(out, n.String())
	}
	return strings.Join(out, ", ")
}

// hydration says what backfill and run will do about targets that are not copied, where
// hydrate.mode or the mark say that they are not; taken is whether their rows are to be
// taken over.
func (e *environment) hydration(mark checkpoint.Mark) (note string, taken bool) {
	switch {
	case mark.Phase == checkpoint.Prepared:
		return fmt.Sprintf("prepared at %s: `tailrace backfill --adopt` takes over the targets, which come from a backup of the source that was taken after that; nothing is copied", mark.Position), true
	case mark.Phase != checkpoint.None && mark.Phase != checkpoint.Preparing:
		return "", false
	case e.Hydrate.Mode == "prepare":
		return "hydrate.mode is prepare: `tailrace backfill` makes slot and mark and copies nothing; a backup of the source that is taken after that is restored into the destination, then `tailrace backfill --adopt`", true
	case e.Hydrate.Mode == "adopt":
		return "hydrate.mode is adopt: `tailrace backfill` compares the targets with the source and takes their rows if they are equal; nothing is copied", true
	}
	return "", false
}

// hydrationFindings are what stands against taking rows over.
func (e *environment) hydrationFindings(mark checkpoint.Mark, bound []pipeline.Bound) []sink.Finding {
	note, taken := e.hydration(mark)
	if !taken {
		return nil
	}
	out := []sink.Finding{{What: note}}
	for i := range bound {
		restored := mark.Phase == checkpoint.Prepared || e.Hydrate.Mode == "prepare"
		if why := bound[i].Unadoptable(restored); why != "" {
			out = append(out, sink.Finding{What: fmt.Sprintf("target %s cannot be taken over: %s", bound[i].Target.Name, why),
				Remedy: "name the other targets with --table: run copies this one, into an empty target"})
		}
	}
	return out
}
