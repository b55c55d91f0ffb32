package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/source"
)

// Refreshed is what a refresh did.
type Refreshed struct {
	Target  change.Name
	Full    bool
	Version string // of the snapshot that was taken; empty: none was
	Took    time.Duration
}

// Refresh brings a flow up to date now: a snapshot flow takes its snapshots, also where
// they are not due; what a log or files hold is followed to its end. full makes the
// flow's target anew, with all flows into it and what is remembered (rule R94): it is
// refused where what filled it can no longer be read, unless force.
func Refresh(ctx context.Context, c Config, name string, full, force bool) (r Refreshed, err error) {
	began := time.Now()
	r.Full = full
	m := Mode{Once: true, Flow: name}
	if full {
		err := Run(ctx, c, Mode{instead: func(_, work context.Context, s *session) error {
			b, err := s.flowNamed(name)
			if err != nil {
				return err
			}
			m.Overwrite, m.Tables = true, []string{quotedName(b.Target.Name)}
			return s.seedsThere(work, b, force)
		}})
		if err != nil {
			return r, err
		}
	}
	m.refreshed = func(s *session) error {
		b, err := s.flowNamed(name)
		if err != nil {
			return err
		}
		base := s.shots.base(b.Target.Name)
		r.Target, r.Version = b.Target.Name, string(base.Version.Data)
		return nil
	}
	err = Run(ctx, c, m)
	r.Took = time.Since(began)
	return r, err
}

// Refresh has the running pipeline do what the function of this name does. A target that
// is made anew is copied while the stream rests.
func (h *Hold) Refresh(ctx context.Context, name string, full, force bool) (r Refreshed, err error) {
	began := time.Now()
	r.Full = full
	var main *session
	var again chan error
	var shoots bool
	err = h.errand(ctx, func(_, work context.Context, s *session) error {
		b, err := s.flowNamed(name)
		if err != nil {
			return err
		}
		r.Target, main = b.Target.Name, s
		if full {
			if err := s.seedsThere(work, b, force); err != nil {
				return err
			}
			s.again = append(s.again, quotedName(b.Target.Name))
			again = s.shots.copiedAgain()
		}
		shoots = slices.ContainsFunc(s.bound, func(o Bound) bool { return o.Spec.Snapshot != nil && o.Target.Name == b.Target.Name })
		return nil
	})
	if err != nil {
		return r, err
	}
	if again != nil {
		if err := waitFor(ctx, main.copies.life, again); err != nil {
			return r, err
		}
	}
	if shoots {
		reply := make(chan error, 1)
		select {
		case main.shots.kicks <- kick{r.Target, reply}:
		case <-ctx.Done():
			return r, ctx.Err()
		case <-main.copies.life.Done():
			return r, errSessionEnded
		}
		if err := waitFor(ctx, main.copies.life, reply); err != nil {
			return r, err
		}
		base := main.shots.base(r.Target)
		r.Version = string(base.Version.Data)
	}
	r.Took = time.Since(began)
	return r, nil
}

var errSessionEnded = fault.Retry(nil, "the pipeline began anew meanwhile; ask again")

func waitFor(ctx, life context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-life.Done():
		return errSessionEnded
	}
}

// kick asks for the snapshots of a target out of turn.
type kick struct {
	target change.Name
	done   chan<- error
}

// flowNamed finds a flow by its name or its target's.
func (s *session) flowNamed(name string) (*Bound, error) {
	var found *Bound
	for i := range s.bound {
		b := &s.bound[i]
		switch {
		case b.name() == name || b.Spec.Sequenced.Name == name && name != "":
			return b, nil
		case named(name, b) && found == nil:
			found = b
		}
	}
	if found == nil {
		return nil, fault.Badly("--flow %s: there is no such flow; a flow has the name of its target, unless it says `name`", name)
	}
	return found, nil
}

// quotedName spells a target so that it is found again, whatever its name holds.
func quotedName(n change.Name) string {
	return `"` + strings.ReplaceAll(n.Schema, `"`, `""`) + `"."` + strings.ReplaceAll(n.Table, `"`, `""`) + `"`
}

// seedsThere refuses to make a target anew of what is gone (rule R91): files that were
// taken, a table that one flow read once, snapshots that a history was made of.
func (s *session) seedsThere(ctx context.Context, b *Bound, force bool) error {
	target := b.Target.Name
	var lost []string
	for i := range s.bound {
		o := &s.bound[i]
		if o.Target.Name != target {
			continue
		}
		switch {
		case o.Blocked != nil:
			lost = append(lost, fmt.Sprintf("flow %s: %s", o.Spec.Source, o.Blocked.What))
		case o.Spec.Files:
			gone, err := s.filesGone(ctx, o)
			if err != nil {
				return err
			}
			if len(gone) > 0 {
				lost = append(lost, fmt.Sprintf("flow %s took %d files that are not there any more, such as %s", o.name(), len(gone), gone[0]))
			}
		case o.Spec.Snapshot != nil && o.Spec.Snapshot.Path != "":
			earlier, err := s.earlierShots(ctx, o)
			if err != nil {
				return err
			}
			if earlier != "" {
				lost = append(lost, earlier)
			}
		case o.Spec.Snapshot != nil && o.Target.Kind == scd.Type2:
			lost = append(lost, fmt.Sprintf("flow %s: earlier snapshots are not there any more; the history begins with the next one", o.name()))
		}
	}
	if left := s.leaving(); slices.ContainsFunc(left, func(f checkpoint.Flow) bool { return f.Target == target }) {
		lost = append(lost, "a flow that is no longer declared wrote to it")
	}
	if len(lost) == 0 {
		return nil
	}
	if force {
		for _, what := range lost {
			s.Log.Warn("the target is made anew without what is gone, because of --force", "target", target.String(), "gone", what)
		}
		return nil
	}
	return fault.Refuse("put it back; or pass --force to make the target anew of what is left", "target %s cannot be made anew of all that made it: %s", target, strings.Join(lost, "; "))
}

// filesGone lists the files of a relation that were taken and are not there any more.
func (s *session) filesGone(ctx context.Context, b *Bound) (gone []string, err error) {
	lister, ok := s.files.(source.Lister)
	if !ok {
		return nil, nil
	}
	memory, ok := s.dst.(sink.Memory)
	if !ok {
		return nil, nil
	}
	taken, err := memory.Files(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which files were taken: %w", err)
	}
	there, err := lister.There(ctx, b.Relation.Table.Name)
	if err != nil {
		return nil, err
	}
	for _, f := range taken {
		if f.Relation == b.Relation.Table.Name && !f.Ends() && !slices.Contains(there, f.Path) {
			gone = append(gone, f.Path)
		}
	}
	return gone, nil
}

// earlierShots says what is missing of the snapshot files that a target was made of; of
// a type 1 target the newest is enough.
func (s *session) earlierShots(ctx context.Context, b *Bound) (string, error) {
	c, err := s.channelOf(b.Target.Name)
	if err != nil {
		return "", err
	}
	_, base, _, err := c.defined(ctx)
	if err != nil || base.IsZero() {
		return "", err
	}
	set, err := s.OpenVersions(b.Spec.Snapshot)
	if err != nil {
		return "", err
	}
	found, err := versionsOf(ctx, set, b.flow.Types[0])
	if err != nil {
		return "", err
	}
	there := func(ok func(versioned) bool) bool { return slices.ContainsFunc(found, ok) }
	switch {
	case b.Target.Kind == scd.Type1 && there(func(v versioned) bool { return v.place.Compare(base.Place) >= 0 }):
		return "", nil
	case b.Target.Kind == scd.Type2 && there(func(v versioned) bool { return v.place.Compare(base.Place) == 0 }) && len(found) > 1:
		return "", nil // earlier ones are there too; which ones there were nobody remembers
	}
	return fmt.Sprintf("flow %s: the snapshot files up to version %s are not there any more", b.name(), base.Version.Data), nil
}

// RebuildHistory decides a history anew after a change of its tracked columns (rule
// R43), from what is remembered of all its events, in one destination transaction.
func RebuildHistory(ctx context.Context, c Config, name string) (r Rebuilt, err error) {
	began := time.Now()
	err = Run(ctx, c, Mode{instead: func(_, work context.Context, s *session) error {
		b, err := s.flowNamed(name)
		if err != nil {
			return err
		}
		r.Target = b.Target.Name
		return s.rebuild(work, b, &r)
	}})
	r.Took = time.Since(began)
	return r, err
}

// Rebuilt is what RebuildHistory did.
type Rebuilt struct {
	Target         change.Name
	Keys           int
	Removed, Begun int // versions
	Took           time.Duration
}

func (s *session) rebuild(ctx context.Context, b *Bound, r *Rebuilt) error {
	if b.flow == nil || b.Target.Kind != scd.Type2 {
		return fault.Badly("--rebuild-history is for histories (stored_as_scd_type: 2) of flows with sequence_by or of snapshots: target %s is none", b.Target.Name)
	}
	c, err := s.channelOf(b.Target.Name)
	if err != nil {
		return err
	}
	have, _, _, err := c.defined(ctx)
	if err != nil {
		return err
	}
	want := definition(c.flows[0])
	if before, _, _ := strings.Cut(have, ", tracked "); have == "" || !strings.HasPrefix(want, before+", tracked ") {
		return c.refuse(have, want) // not the tracked columns alone
	}
	head, err := c.memory.Head(ctx, c.target)
	if err != nil {
		return fmt.Errorf("read what is remembered of %s: %w", c.target.Name, err)
	}
	anew := sequenced.NewRebuild(c.target, laneOptions(c.flows), head)
	first := true
	write := func(last bool) error {
		work, round, err := anew.Take(last, want)
		if err != nil {
			return err
		}
		r.Removed += len(round.Drops)
		r.Begun += len(round.Begins)
		part := sink.TargetRounds{Target: c.target, Hidden: &work}
		if !round.Empty() {
			part.Rounds = []scd.Round{round}
		}
		batch := &sink.Batch{Position: s.mark.Position, Resume: s.mark.Resume, CommitTime: s.mark.CommitTime, First: first, More: !last, Targets: []sink.TargetRounds{part}}
		first = false
		if err := s.dst.Apply(ctx, batch); err != nil {
			return fmt.Errorf("write the history: %w", err)
		}
		return nil
	}
	err = c.memory.Records(ctx, c.target, func(rec sequenced.Record) error {
		if err := anew.Add(rec); err != nil {
			return err
		}
		if anew.Size() >= s.BatchRows {
			return write(false)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what is remembered of %s: %w", c.target.Name, err)
	}
	if err := write(true); err != nil {
		return err
	}
	r.Keys = anew.Keys()
	s.progressed = true
	s.Log.Info("history rebuilt", "target", c.target.Name.String(), "keys", r.Keys, "removed", r.Removed, "begun", r.Begun)
	return nil
}
