package pipeline

import (
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/source"
)

// Definitions that cannot be meant are refused before anything is made, with flow,
// column and what to do.
func TestDefinitionsOfSequencedFlows(t *testing.T) {
	column := func(name string, kind change.Kind, typ string) change.Column {
		return change.Column{Name: name, Type: change.Type{Kind: kind, Name: typ}, Nullable: name != "id", Key: true}
	}
	relation := func(name string, id uint32) source.Relation {
		return source.Relation{Usable: true, PrimaryKey: []string{"id"}, Table: &change.Table{ID: id, Name: change.Name{Schema: "public", Table: name}, Identity: change.IdentityFull, Columns: []change.Column{
			column("id", change.Int64, "bigint"), column("Name", change.Text, "text"), column("op", change.Text, "text"),
			column("seq", change.Int64, "bigint"), column("at", change.TimestampTZ, "timestamp with time zone"), column("doc", change.JSONB, "jsonb")}}}
	}
	relations := []source.Relation{relation("feed", 1), relation("feed2", 2)}
	base := func() flow.Spec {
		return flow.Spec{Source: "feed", Target: "t", SCDType: 1, Keys: []string{"id"}, HistoryStart: flow.HistoryStartSnapshot, Sequenced: flow.Sequenced{SequenceBy: []string{"seq"}, Feed: true}}
	}
	bind := func(specs ...flow.Spec) ([]Bound, error) {
		for i := range specs {
			if err := specs[i].Validate(); err != nil {
				return nil, err
			}
		}
		b, _, err := Bind(specs, relations, nil, "public", "main", func(*flow.Spec, change.Name) bool { return false })
		return b, err
	}
	for _, c := range []struct {
		set  func(*flow.Spec)
		want string
	}{
		{func(s *flow.Spec) { s.Sequenced.SequenceBy = []string{"sek"} }, "sequence_by names no column: sek"},
		{func(s *flow.Spec) { s.Sequenced.SequenceBy = []string{"doc"} }, "have no order"},
		{func(s *flow.Spec) { s.Sequenced.DeleteWhen = "operation = 'DELETE'" }, "apply_as_deletes"},
		{func(s *flow.Spec) { s.Sequenced.DeleteWhen = "op" }, "apply_as_deletes"},
		{func(s *flow.Spec) { s.Sequenced.TruncateWhen = "op = 'T'"; s.SCDType = 2 }, "stored_as_scd_type: 1 only"},
		{func(s *flow.Spec) { s.Sequenced.IgnoreNull = true; s.Sequenced.ColumnsToUpdate = "doc" }, "exclude each other"},
		{func(s *flow.Spec) { s.Sequenced.IgnoreNull = true; s.Sequenced.IgnoreNullList = []string{"op"} }, "exclude each other"},
		{func(s *flow.Spec) { s.Sequenced.IgnoreNullList = []string{"nope"} }, "no such column: nope"},
		{func(s *flow.Spec) { s.Sequenced.ColumnsToUpdate = "nope" }, "columns_to_update names no column"},
		{func(s *flow.Spec) { s.Keys = nil }, "a feed needs keys"},
		{func(s *flow.Spec) { s.Keys = []string{"nope"} }, "nope"},
		{func(s *flow.Spec) { s.AppendOnly = true }, "append_only"},
		{func(s *flow.Spec) { s.Source, s.Target = "public.*", "" }, "not to a pattern"},
		{func(s *flow.Spec) { s.Sequenced.SkipChange = []string{"upsert"} }, "skip_change_commits"},
		{func(s *flow.Spec) { s.Sequenced.Feed = false; s.Sequenced.SkipChange = []string{"update"} }, "skip_change_commits"},
		{func(s *flow.Spec) { s.Sequenced.Feed = false; s.SCDType = 2 }, "name what gives it one with delete_sequence, of type bigint"},
		{func(s *flow.Spec) { s.Sequenced.QuarantineBeyond = true }, "late_beyond_retention"},
		{func(s *flow.Spec) { s.Sequenced.SequenceBy = nil }, "needs sequence_by"},
		{func(s *flow.Spec) { s.ExceptColumnList = []string{"id"} }, "key column id"},
	} {
		s := base()
		c.set(&s)
		_, err := bind(s)
		if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "feed") && !strings.Contains(err.Error(), "public.*") {
			t.Errorf("want a refusal with %q, got %v", c.want, err)
		}
	}

	second := func(set func(*flow.Spec)) error {
		s := base()
		s.Source, s.Sequenced.Name = "feed2", "second"
		set(&s)
		_, err := bind(base(), s)
		return err
	}
	for _, c := range []struct {
		set  func(*flow.Spec)
		want string
	}{
		{func(s *flow.Spec) {}, ""},
		{func(s *flow.Spec) { s.Sequenced.Name = "" }, "`name`"},
		{func(s *flow.Spec) { s.Keys = []string{"id", "op"} }, "keys"},
		{func(s *flow.Spec) { s.SCDType = 2 }, "stored_as_scd_type"},
		{func(s *flow.Spec) { s.Sequenced.SequenceBy = []string{"at"} }, "type of sequence_by"},
		{func(s *flow.Spec) { s.ExceptColumnList = []string{"doc"} }, "columns"},
		{func(s *flow.Spec) { s.Sequenced = flow.Sequenced{} }, "two flows"},
	} {
		err := second(c.set)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("a second flow: want %q, got %v", c.want, err)
		}
	}

	// What may not be meant is a warning.
	s := base()
	s.SCDType = 2
	b, err := bind(s)
	if err != nil || len(b[0].Warnings) != 1 || !strings.Contains(b[0].Warnings[0], "seq is a tracked column") {
		t.Errorf("%+v, %v", b, err)
	}
	s = base()
	s.Sequenced.SequenceBy = []string{"name"}
	b, err = bind(s)
	if err != nil || len(b[0].Warnings) != 1 || !strings.Contains(b[0].Warnings[0], "is text") {
		t.Errorf("%+v, %v", b, err)
	}
	// A column that says what an event writes is no data.
	s = base()
	s.Sequenced.ColumnsToUpdate = "doc"
	b, err = bind(s)
	if err != nil || len(b[0].Target.Columns) != 5 || b[0].flow.Update != 5 {
		t.Errorf("%+v, %v", b, err)
	}
}
