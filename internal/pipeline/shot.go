package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/source"
)

// Shot is what a snapshot flow reads, as it is now.
type Shot struct {
	rel     *source.Relation
	version change.Type // of its versions
	column  string      // that the version query gives
}

func (s Shot) relation() []source.Relation {
	if s.rel == nil {
		return nil
	}
	return []source.Relation{*s.rel}
}

// Shots describes what the snapshot flows read, by their places among the flows. Files
// that are not there yet are no error (rule R65): their flow has nothing to read. log and
// versions may be nil.
func Shots(ctx context.Context, flows []flow.Spec, log source.Source, relations []source.Relation, sourceDefault string, versions func(*flow.Snapshot) (source.Versions, error)) (map[int]Shot, error) {
	shots := map[int]Shot{}
	for i := range flows {
		n := flows[i].Snapshot
		if n == nil {
			continue
		}
		shot, err := describeShot(ctx, n, log, relations, sourceDefault, versions)
		if err != nil {
			return nil, fmt.Errorf("flow %q: %w", flows[i].Source, err)
		}
		if shot.rel != nil {
			shots[i] = shot
		}
	}
	return shots, nil
}

func describeShot(ctx context.Context, n *flow.Snapshot, log source.Source, relations []source.Relation, sourceDefault string, versions func(*flow.Snapshot) (source.Versions, error)) (s Shot, err error) {
	if n.Path != "" {
		return describeFiles(ctx, n, versions)
	}
	name := n.Name(sourceDefault)
	queries, _ := log.(source.Querier)
	if n.Query != "" || n.Version == flow.ByQuery {
		if queries == nil {
			return s, fault.Badly("this source takes no queries; name a table with snapshot.relation, and version: counter or position")
		}
	}
	switch n.Version {
	case flow.ByCounter:
		s.version = flow.VersionTypes["bigint"]
	case flow.ByPosition:
		s.version = sequenced.PositionType
		if slices.ContainsFunc(relations, func(r source.Relation) bool { return r.Table.FileLog }) {
			s.version = sequenced.NumberType
		}
	case flow.ByQuery:
		t, err := queries.DescribeQuery(ctx, n.VersionQuery)
		if err != nil {
			return s, fmt.Errorf("version query: %w", err)
		}
		if len(t.Columns) != 1 {
			return s, fault.Badly("the version query gives %d columns; it is to give one", len(t.Columns))
		}
		s.column = t.Columns[0].Name
		if s.version = t.Columns[0].Type; !sequenced.Sortable(s.version) {
			return s, fault.Badly("SNAPSHOT_VERSION_NOT_SORTABLE: values of type %s have no order to go by; let the version query give a number, a time or an identifier", s.version.Name)
		}
	}
	if n.Query == "" {
		i := slices.IndexFunc(relations, func(r source.Relation) bool { return r.Table.Name == name })
		if i < 0 {
			return s, fault.Refuse("create it, or correct snapshot.relation (names are case-sensitive; write schema.table)", "the source has no table %s", n.Relation)
		}
		rel := relations[i]
		if rel.Problem != "" && len(rel.Table.Columns) == 0 {
			return s, fault.Refuse("correct the flow", "table %s: %s", name, rel.Problem)
		}
		s.rel = &rel
		return s, nil
	}
	t, err := queries.DescribeQuery(ctx, n.Query)
	if err != nil {
		return s, err
	}
	t.Name = name
	s.rel = &source.Relation{Table: t, TextOnly: true}
	return s, nil
}

func describeFiles(ctx context.Context, n *flow.Snapshot, versions func(*flow.Snapshot) (source.Versions, error)) (s Shot, err error) {
	s.version = flow.VersionTypes["bigint"]
	if n.VersionType != "" {
		s.version = flow.VersionTypes[n.VersionType]
	}
	set, err := versions(n)
	if err != nil {
		return s, err
	}
	found, err := versionsOf(ctx, set, s.version)
	if err != nil || len(found) == 0 {
		return s, err
	}
	// As the newest is: what older ones lack is NULL in them. One without rows says nothing
	// of its columns.
	var first error
	for i := len(found) - 1; i >= 0; i-- {
		t, err := set.Describe(ctx, found[i].file)
		if err == nil {
			t.Name = n.Name("")
			s.rel = &source.Relation{Table: t, TextOnly: true}
			return s, nil
		}
		if first = cmp.Or(first, err); ctx.Err() != nil {
			break
		}
	}
	return s, first
}

// keep gives columns that were known before the types that they had: what is inferred
// from another file may differ, and a target's columns do not change by a bad value.
// Columns that the file does not have stay.
func (s *Shot) keep(layout []byte) error {
	if len(layout) == 0 {
		return nil
	}
	var known []change.Column
	if err := json.Unmarshal(layout, &known); err != nil {
		return fault.Corrupted("the remembered columns of snapshot files cannot be read: %v", err)
	}
	t := *s.rel.Table
	for _, c := range t.Columns {
		if !slices.ContainsFunc(known, func(k change.Column) bool { return k.Name == c.Name }) {
			known = append(known, c)
		}
	}
	t.Columns = known
	rel := *s.rel
	rel.Table, s.rel = &t, &rel
	return nil
}

// keepLayouts does that for the flows whose targets have been written.
func (s *session) keepLayouts(ctx context.Context, shots map[int]Shot) error {
	memory, ok := s.dst.(sink.Memory)
	for i, shot := range shots {
		f := &s.Flows[i]
		target := f.TargetFor(specRelation(f, s.SourceSchema), s.SourceSchema, s.DefaultSchema)
		if !ok || f.Snapshot.Path == "" || len(f.Snapshot.Columns) > 0 || !s.knows(target) {
			continue
		}
		_, base, _, err := aboutTarget(ctx, memory, &scd.Target{Name: target, Kind: scd.Kind(f.SCDType), Sequenced: true})
		if err == nil {
			err = shot.keep(base.Layout)
		}
		if err != nil {
			return err
		}
		shots[i] = shot
	}
	return nil
}

// versioned is a snapshot file with its version.
type versioned struct {
	file  source.VersionFile
	place sequenced.Place
}

// versionsOf lists the files in the order of their versions.
func versionsOf(ctx context.Context, set source.Versions, t change.Type) ([]versioned, error) {
	files, err := set.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []versioned
	for _, f := range files {
		seq, err := sequenced.AppendSequence(nil, change.Value{State: change.AsText, Data: []byte(f.Version)}, t)
		if err != nil {
			return nil, fault.Refuse("let the group match nothing else, or correct snapshot.version_type",
				"INVALID_SNAPSHOT_VERSION_TYPE: the version in the path of snapshot file %s is no %s", f.Path, t.Name)
		}
		out = append(out, versioned{f, sequenced.SnapshotPlace(seq)})
	}
	slices.SortFunc(out, func(a, b versioned) int { return a.place.Compare(b.place) })
	for i := 1; i < len(out); i++ {
		if out[i].place.Compare(out[i-1].place) == 0 {
			return nil, fault.Refuse("remove one of them", "snapshot files %s and %s have one version", out[i-1].file.Path, out[i].file.Path)
		}
	}
	return out, nil
}

// bindShot binds a snapshot flow.
func bindShot(spec *flow.Spec, order int, rel *source.Relation, shot Shot, sourceDefault, defaultSchema string) (Bound, error) {
	t := rel.Table
	spec = spec.Resolved(t)
	keys := spec.Keys
	if len(keys) == 0 {
		keys = rel.PrimaryKey
	}
	if len(keys) == 0 {
		return Bound{}, fault.Badly("flow %q: table %s has no primary key; name the columns in `keys` that say which row is which", spec.Source, t.Name)
	}
	chosen, isKey, tracked, err := spec.Columns(t, keys)
	if err != nil {
		return Bound{}, err
	}
	b := Bound{Spec: spec, Relation: rel, order: order}
	b.Target = &scd.Target{Name: spec.TargetFor(t.Name, sourceDefault, defaultSchema), Source: t.Name, Kind: scd.Kind(spec.SCDType),
		ChangeFeed: spec.ChangeFeed, FeedKeep: spec.FeedKeep}
	for _, i := range chosen {
		c := t.Columns[i]
		b.Target.Columns = append(b.Target.Columns, scd.Column{Name: c.Name, Type: c.Type, Key: isKey[i], Tracked: tracked[i], Nullable: c.Nullable && !isKey[i]})
	}
	b.flow = &sequenced.Flow{Name: flowName(spec, b.Target), Order: uint16(order), Feed: true, Inputs: len(t.Columns), Update: -1,
		Types: []change.Type{shot.version}, Names: []string{cmp.Or(shot.column, "version")}}
	if err := b.readFrom(b.Target); err != nil {
		return Bound{}, err
	}
	b.Target = sequencedTarget(b.Target, b.flow)
	_, _, err = b.expects()
	return b, err
}

// readFrom says from which column of what is read each column of a target comes.
func (b *Bound) readFrom(t *scd.Target) error {
	b.flow.Columns = b.flow.Columns[:0]
	for i := range t.Columns {
		at := b.Relation.Table.Find(t.Columns[i].Name)
		if at < 0 && t.Columns[i].Key {
			at = slices.IndexFunc(b.Relation.Table.Columns, func(c change.Column) bool { return strings.EqualFold(c.Name, t.Columns[i].Name) })
		}
		if at < 0 && t.Columns[i].Key {
			return fault.Badly("INTEROP_KEYS_MISMATCH: flow %q: %s has no key column %q of target %s", b.Spec.Source, b.Relation.Table.Name, t.Columns[i].Name, t.Name)
		}
		b.flow.Columns = append(b.flow.Columns, at)
	}
	return nil
}

// join makes the target of an earlier flow that of b too.
func (b *Bound) join(t *scd.Target) error {
	b.Target = t
	if b.Spec.Snapshot != nil {
		return b.readFrom(t)
	}
	f, err := sequencedFlow(b.Spec, b.order, b.Relation.Table, t)
	b.flow = f
	return err
}

// merges checks that a snapshot flow and another may share a target (rule R72). Error
// names are those of rule R73.
func merges(a, b *Bound) error {
	target, shot, feed := a.Target.Name, a, b
	if a.Spec.Snapshot == nil {
		shot, feed = b, a
	}
	columns := func(t *scd.Target, key bool) (names []string) {
		for i := range t.Columns {
			if t.Columns[i].Key == key {
				names = append(names, t.Columns[i].Name)
			}
		}
		if !key {
			slices.Sort(names)
		}
		return names
	}
	q := &feed.Spec.Sequenced
	switch {
	case feed.Spec.Snapshot != nil:
		return fault.Badly("target %s has two snapshot flows; a target has one at most (rule R57)", target)
	case a.Target.Kind != scd.Type1 || b.Target.Kind != scd.Type1:
		return fault.Badly("target %s is written by snapshots and by a feed; that goes with stored_as_scd_type: 1 only (rule R72)", target)
	case flowName(a.Spec, a.Target) == flowName(b.Spec, b.Target):
		return fault.Badly("target %s is written by several flows; give each a `name` of its own", target)
	case shot.Spec.Drops():
		return fault.Badly("INTEROP_EXPECTATIONS_NOT_SUPPORTED: target %s is written by snapshots and by flow %q, and an expectation of the snapshots may drop rows: what a snapshot says of a key would depend on whether an event of the feed came before it or after; say on_violation: warn or fail, or let a query leave such rows out (they count as gone then)",
			target, feed.Spec.Source)
	case q.Partial():
		return fault.Badly("INTEROP_IGNORE_NULL_UNSUPPORTED: target %s is written by snapshots too; leave ignore_null_updates and columns_to_update out of flow %q", target, feed.Spec.Source)
	case !slices.EqualFunc(columns(shot.Target, true), columns(feed.Target, true), strings.EqualFold):
		return fault.Badly("INTEROP_KEYS_MISMATCH: target %s is written by snapshots with keys (%s) and by flow %q with keys (%s)",
			target, strings.Join(columns(shot.Target, true), ", "), feed.Spec.Source, strings.Join(columns(feed.Target, true), ", "))
	case len(shot.flow.Types) != len(feed.flow.Types) || shot.flow.Types[0].Kind != feed.flow.Types[0].Kind || shot.flow.Types[0].Kind == change.Other && shot.flow.Types[0].Name != feed.flow.Types[0].Name:
		return fault.Badly("target %s is written by snapshots with versions of type %s and by flow %q with a sequence of type %s; they are compared with each other, so they must have one type (rule R67)",
			target, typeNames(shot.flow.Types), feed.Spec.Source, typeNames(feed.flow.Types))
	case !slices.Equal(columns(shot.Target, false), columns(feed.Target, false)):
		return fault.Badly("target %s is written by snapshots with columns (%s) and by flow %q with columns (%s); they must have the same (except_column_list leaves some out)",
			target, strings.Join(columns(shot.Target, false), ", "), feed.Spec.Source, strings.Join(columns(feed.Target, false), ", "))
	}
	for i := range shot.Target.Columns {
		c := &shot.Target.Columns[i]
		same := func(o scd.Column) bool { return o.Key == c.Key && strings.EqualFold(o.Name, c.Name) }
		if at := slices.IndexFunc(feed.Target.Columns, same); feed.Target.Columns[at].Type.Kind != c.Type.Kind {
			return fault.Badly("target %s: column %s has type %s in the snapshots and %s in flow %q", target, c.Name, c.Type.Name, feed.Target.Columns[at].Type.Name, feed.Spec.Source)
		}
	}
	return nil
}
