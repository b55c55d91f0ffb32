package pipeline

import (
	"context"
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

// Bound is one flow on one relation: what is read, and what must be held.
type Bound struct {
	Spec     *flow.Spec
	Relation *source.Relation
	Target   *scd.Target
	Notes    []string // what this target will not see
	Warnings []string // what may not be meant

	flow  *sequenced.Flow  // of a sequenced flow, or one of snapshots
	rules []sequenced.Rule // its expectations
	tally *sequenced.Tally // what they met; nil: there are none
	judge *sequenced.Judge // of an ordered flow, or one of snapshots; a sequenced one has it in flow
	order int              // in which it was declared, among the flows into its target
	// second: another flow before it writes the same (sequenced) target, which is
	// planned, copied and remembered once.
	second bool

	// Blocked says why the relation cannot be followed, although the target is known
	// to the mark: the target is to be parked. Then Target has only names and kind.
	Blocked *sink.Finding
}

// Known reports whether a flow's target has been copied with its rows, so that its
// source's present state concerns it alone.
type Known func(spec *flow.Spec, target change.Name) bool

// Bind matches flows with the source's relations. A relation that cannot be followed
// is a finding where a pattern took it and an error where it was named by itself,
// unless its target is known from before: then it is Blocked and does not keep the
// others from going on.
// What snapshot flows read is in shots, by their places among the flows; one that is not
// in it has nothing to read yet.
func Bind(flows []flow.Spec, relations []source.Relation, shots map[int]Shot, sourceDefault, defaultSchema string, known Known) ([]Bound, []sink.Finding, error) {
	var bound []Bound
	var findings []sink.Finding
	taken := map[change.Name]change.Name{}
	for i := range flows {
		spec := &flows[i]
		found := spec.Snapshot != nil
		candidates := relations
		if spec.Snapshot != nil {
			candidates = shots[i].relation()
		}
		for j := range candidates {
			rel := &candidates[j]
			if spec.Snapshot == nil && !spec.Matches(rel.Table.Name) {
				continue
			}
			found = true
			order := orderOf(flows[:i], spec.TargetFor(rel.Table.Name, sourceDefault, defaultSchema), sourceDefault, defaultSchema)
			var b Bound
			var finding *sink.Finding
			var err error
			if spec.Snapshot != nil {
				b, err = bindShot(spec, order, rel, shots[i], sourceDefault, defaultSchema)
			} else {
				b, finding, err = bindOne(spec, order, rel, sourceDefault, defaultSchema, known)
			}
			if err != nil {
				return nil, nil, err
			}
			if finding != nil {
				findings = append(findings, *finding)
				continue
			}
			first := slices.IndexFunc(bound, func(o Bound) bool { return o.Target.Name == b.Target.Name })
			if first >= 0 && b.Blocked != nil && spec.Once {
				continue // a seed that is gone; the target lives on by its other flows
			}
			if first >= 0 && bound[first].Blocked != nil && bound[first].Spec.Once {
				bound[first] = b
				continue
			}
			if first >= 0 && b.flow != nil && bound[first].flow != nil {
				for j := range bound {
					if bound[j].Target.Name == b.Target.Name {
						if err := agree(&bound[j], &b); err != nil {
							return nil, nil, err
						}
					}
				}
				if err := b.join(bound[first].Target); err != nil {
					return nil, nil, err
				}
				b.second = true
				bound = append(bound, b)
				continue
			}
			if other, twice := taken[b.Target.Name]; twice {
				return nil, nil, fault.Badly("target %s is written by two flows, from %s and from %s; give one of them another target, or leave the table out of the pattern with except",
					b.Target.Name, other, rel.Table.Name)
			}
			taken[b.Target.Name] = rel.Table.Name
			bound = append(bound, b)
		}
		if !found {
			if spec.IsPattern() {
				findings = append(findings, sink.Finding{What: fmt.Sprintf("pattern %q matches no table", spec.Source), Remedy: "correct the pattern, or create the tables"})
				continue
			}
			schema, table := flow.SplitName(spec.Source)
			if schema == "" && !spec.Files {
				schema = sourceDefault
			}
			gone := &source.Relation{Table: &change.Table{Name: change.Name{Schema: schema, Table: table}}}
			if b := blocked(spec, gone, sourceDefault, defaultSchema, "make it again, or take its flow out of the configuration", "the source has no table "+spec.Source+" any more"); known(spec, b.Target.Name) {
				if !spec.Once || !slices.ContainsFunc(bound, func(o Bound) bool { return o.Target.Name == b.Target.Name }) {
					bound = append(bound, b)
				}
				continue
			}
			return nil, nil, fault.Refuse("create it, or correct `source` of the flow (names are case-sensitive; write schema.table)"+butForCase(relations, gone.Table.Name),
				"the source has no table %s", spec.Source)
		}
	}
	return bound, findings, nil
}

// butForCase names a table that is spelled as the one that is missing, apart from case.
func butForCase(relations []source.Relation, missing change.Name) string {
	for i := range relations {
		if n := relations[i].Table.Name; strings.EqualFold(n.Schema, missing.Schema) && strings.EqualFold(n.Table, missing.Table) {
			return "; there is " + n.String()
		}
	}
	return ""
}

// orderOf is how many flows with a sequence are declared before into the same target.
// It is part of every event's place, so flows into other targets do not count.
func orderOf(before []flow.Spec, target change.Name, sourceDefault, defaultSchema string) (n int) {
	for i := range before {
		if before[i].ByEvents() && before[i].TargetFor(specRelation(&before[i], sourceDefault), sourceDefault, defaultSchema) == target {
			n++
		}
	}
	return n
}

// bindOne gives a Bound, or a finding for a relation that a pattern skips or that
// blocks.
func bindOne(spec *flow.Spec, order int, rel *source.Relation, sourceDefault, defaultSchema string, known Known) (Bound, *sink.Finding, error) {
	t := rel.Table
	refuse := func(remedy, format string, args ...any) (Bound, *sink.Finding, error) {
		what := fmt.Sprintf("table %s: ", t.Name) + fmt.Sprintf(format, args...)
		if b := blocked(spec, rel, sourceDefault, defaultSchema, remedy, what); known(spec, b.Target.Name) {
			return b, nil, nil
		}
		if spec.IsPattern() {
			return Bound{}, &sink.Finding{Blocks: true, What: what, Remedy: remedy + ", or leave it out of the pattern with except"}, nil
		}
		return Bound{}, nil, fault.Refuse(remedy, "%s", what)
	}
	if rel.Problem != "" {
		if spec.IsPattern() && !known(spec, spec.TargetFor(t.Name, sourceDefault, defaultSchema)) {
			return Bound{}, &sink.Finding{What: fmt.Sprintf("table %s is left out: %s", t.Name, rel.Problem), Remedy: "name it in except to say that this is meant"}, nil
		}
		return refuse("correct the flow", "%s", rel.Problem)
	}

	spec = spec.Resolved(t)
	keys := spec.Keys
	if len(keys) == 0 {
		keys = rel.PrimaryKey
		if t.Identity == change.IdentityIndex && rel.Usable {
			keys = nil // the log speaks of rows by this index
			for _, c := range t.Columns {
				if c.Key {
					keys = append(keys, c.Name)
				}
			}
		}
	}
	appendOnly := spec.AppendOnly || len(keys) == 0
	b := Bound{Spec: spec, Relation: rel, order: order}
	switch q := &spec.Sequenced; {
	case q.Feed:
		appendOnly = false // its keys are the target's; no event is an UPDATE or DELETE
	case q.Is() && len(keys) == 0:
		return refuse("name the columns in `keys`; or source_kind: feed with `keys`, if its rows are events", "a flow with sequence_by needs a key, and the table has none")
	case q.Is() && t.Identity != change.IdentityFull && slices.ContainsFunc(q.DeleteSequence, func(name string) bool { return findInput(t.Columns, name) >= 0 }):
		return refuse(fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL (MariaDB, MySQL: binlog_row_image = FULL); or `delete_sequence: _commit_time` or `_lsn`", quoted(t.Name)),
			"delete_sequence names a column, and the log holds only the key of a row that is deleted")
	case appendOnly && spec.SCDType != 1:
		return refuse(fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (...)", quoted(t.Name)), "history needs a key, and there is none")
	case appendOnly && !spec.AppendOnly:
		b.Notes = append(b.Notes, fmt.Sprintf("%s has no key: append-only; UPDATE and DELETE there are invisible", t.Name))
	case appendOnly:
		b.Notes = append(b.Notes, fmt.Sprintf("%s is append-only by configuration; UPDATE and DELETE there are not followed", t.Name))
	case !rel.Usable:
		return refuse(rel.Remedy+"; or append_only: true in the flow",
			"the log does not say which row an UPDATE or DELETE means: %s", rel.Why)
	}
	if appendOnly {
		keys = nil
	}
	if q := &spec.Sequenced; q.ColumnsToUpdate != "" && len(spec.ColumnList) == 0 && t.Find(q.ColumnsToUpdate) >= 0 {
		// The column that says what an event writes is no data (rule R52).
		without := *spec
		without.ExceptColumnList = append(slices.Clip(spec.ExceptColumnList), q.ColumnsToUpdate)
		spec, b.Spec = &without, &without
	}
	chosen, isKey, tracked, err := spec.Columns(t, keys)
	if err != nil {
		return Bound{}, nil, err
	}
	if len(chosen) == 0 {
		return refuse("select at least one column", "no column is left")
	}
	if n := len(isKey); n != len(keys) {
		return refuse("correct keys", "keys %s are not all columns of it", strings.Join(keys, ", "))
	}
	target := &scd.Target{
		Name: spec.TargetFor(t.Name, sourceDefault, defaultSchema), Source: t.Name,
		Kind: scd.Kind(spec.SCDType), AppendOnly: appendOnly,
		ChangeFeed: spec.ChangeFeed, FeedKeep: spec.FeedKeep,
	}
	for _, i := range chosen {
		c := t.Columns[i]
		if isKey[i] && spec.Sequenced.Feed {
			c.Nullable = false // an event without a key is set aside
		} else if isKey[i] {
			if t.Identity != change.IdentityFull && !c.Key {
				return refuse(fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL (MariaDB, MySQL: binlog_row_image = FULL), or choose keys among the replica identity's columns", quoted(t.Name)),
					"key column %s is not part of its replica identity", c.Name)
			}
			if c.Nullable {
				return refuse(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", quoted(t.Name), quote(c.Name)), "key column %s may be NULL", c.Name)
			}
		}
		target.Columns = append(target.Columns, scd.Column{Name: c.Name, Type: c.Type, Key: isKey[i], Tracked: tracked[i], Nullable: c.Nullable})
	}
	b.Target = target
	if spec.Sequenced.Is() {
		if b.flow, err = sequencedFlow(spec, order, t, target); err != nil {
			return Bound{}, nil, err
		}
		b.Target = sequencedTarget(target, b.flow)
		b.Warnings = append(b.Warnings, sequenceNotes(spec, target, b.flow)...)
	}
	remedy, what, err := b.expects()
	if err != nil {
		return Bound{}, nil, err
	}
	if what != "" {
		return refuse(remedy, "%s", what)
	}
	return b, nil, nil
}

func blocked(spec *flow.Spec, rel *source.Relation, sourceDefault, defaultSchema, remedy, what string) Bound {
	return Bound{
		Spec: spec, Relation: rel, Blocked: &sink.Finding{Blocks: true, What: what, Remedy: remedy},
		Target: &scd.Target{Name: spec.TargetFor(rel.Table.Name, sourceDefault, defaultSchema), Source: rel.Table.Name, Kind: tableKind(spec.SCDType)},
	}
}

// tableKind is the kind of table in which a destination keeps a target.
func tableKind(scdType int) scd.Kind {
	if scdType == flow.Bitemporal {
		return scd.Type1
	}
	return scd.Kind(scdType)
}

// evolve returns the target of b for a new layout of its source table, or nil if
// the target serves it as it is. New columns come at the end; columns that the
// source dropped stay.
func (b *Bound) evolve(layout *change.Table) (*scd.Target, error) {
	chosen, _, tracked, err := b.Spec.Columns(layout, nil)
	if err != nil && !b.Spec.IsPattern() && fault.KindOf(err) == fault.Usage {
		// A column named in the flow was dropped or renamed in mid-stream.
		return nil, fault.Refuse("correct the flow's column lists and start again", "the layout of table %s changed: %v", layout.Name, err)
	}
	if err != nil {
		return nil, err
	}
	var next *scd.Target
	for _, i := range chosen {
		c := layout.Columns[i]
		at := -1
		for j := range b.Target.Columns {
			if b.Target.Columns[j].Name == c.Name {
				at = j
			}
		}
		if at >= 0 && b.Target.Columns[at].Type.Name == c.Type.Name {
			continue
		}
		if next == nil {
			copied := *b.Target
			copied.Columns = append([]scd.Column(nil), b.Target.Columns...)
			next = &copied
		}
		if at >= 0 {
			next.Columns[at].Type = c.Type
			continue
		}
		next.Columns = append(next.Columns, scd.Column{Name: c.Name, Type: c.Type, Tracked: tracked[i], Nullable: true})
	}
	return next, nil
}

// Followed lists the source tables for the publications: a table goes into the
// append-only one only if every flow on it is append-only.
func Followed(bound []Bound) []source.Followed {
	var out []source.Followed
	at := map[uint32]int{}
	for i := range bound {
		if bound[i].Spec.Once || !bound[i].Spec.FromLog() {
			continue
		}
		t := bound[i].Relation.Table
		j, seen := at[t.ID]
		if !seen {
			at[t.ID] = len(out)
			out = append(out, source.Followed{Table: t, AppendOnly: bound[i].appendOnly()})
			continue
		}
		out[j].AppendOnly = out[j].AppendOnly && bound[i].appendOnly()
	}
	return out
}

// Feeds lists the relations of files that flows take, each once.
func Feeds(bound []Bound) []source.Followed {
	var out []source.Followed
	for i := range bound {
		t := bound[i].Relation.Table
		if bound[i].Spec.Files && !slices.ContainsFunc(out, func(f source.Followed) bool { return f.Table == t }) {
			out = append(out, source.Followed{Table: t})
		}
	}
	return out
}

// CheckSources looks for everything that would stop the flows on a log and on files,
// either of which may be nil, or both the same.
func CheckSources(ctx context.Context, log, files source.Source, bound []Bound) ([]source.Finding, error) {
	var all []source.Finding
	if log != nil && log != files {
		findings, err := log.Check(ctx, Followed(bound))
		if err != nil {
			return nil, fmt.Errorf("check the source: %w", err)
		}
		all = findings
	}
	if files == nil {
		return all, nil
	}
	findings, err := files.Check(ctx, Feeds(bound))
	if err != nil {
		return nil, fmt.Errorf("check the relations of files: %w", err)
	}
	return append(all, findings...), nil
}

// appendOnly reports whether the flow can do with inserts and truncates alone. A feed
// with a usable identity is published whole, so that a change in it is noticed.
func (b *Bound) appendOnly() bool {
	return b.Target.AppendOnly || b.Spec.Sequenced.Feed && (!b.Relation.Usable || len(b.Relation.PrimaryKey) == 0)
}

// quote and quoted spell identifiers for remedies, which are PostgreSQL statements.
func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoted(n change.Name) string { return quote(n.Schema) + "." + quote(n.Table) }
