package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
	"tailrace/source"
)

// filesAreThere refuses a rewind behind which files are gone or changed that a replay would
// take again; with allowGap it names them.
func (s *session) filesAreThere(ctx context.Context, plan *Rewound, restore *sink.Rewind, allowGap bool) error {
	rereader, rereads := s.files.(source.Rereader)
	if len(restore.Relations) == 0 || !rereads {
		return nil
	}
	taken, err := s.dst.(sink.Rewinds).TakenSince(ctx, restore.To)
	if err != nil {
		return fmt.Errorf("read which files were taken: %w", err)
	}
	taken = slices.DeleteFunc(taken, func(f change.File) bool { return !slices.Contains(restore.Relations, f.Relation) })
	if plan.Missing, err = rereader.Unchanged(ctx, taken); err != nil {
		return fmt.Errorf("compare the files that were taken: %w", err)
	}
	if len(plan.Missing) == 0 || allowGap {
		return nil
	}
	var list []string
	for _, p := range plan.Missing[:min(len(plan.Missing), missingShown)] {
		list = append(list, p.File.Path+" "+p.What)
	}
	return fault.Refuse("put them back as they were; or pass --allow-gap: their events are missing then after a replay",
		"%d files that a replay would take again are not as they were: %s", len(plan.Missing), strings.Join(list, "; "))
}

// missingShown is how many files an error names.
const missingShown = 5
