package flow_test

import (
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

func spec(source string) flow.Spec {
	return flow.Spec{Source: source, SCDType: 1, HistoryStart: flow.HistoryStartSnapshot}
}

func TestPatternsMatchSchemaAndTableApart(t *testing.T) {
	for _, c := range []struct {
		pattern string
		except  string
		name    change.Name
		want    bool
	}{
		{"public.*", "", change.Name{Schema: "public", Table: "orders"}, true},
		{"public.*", "", change.Name{Schema: "sales", Table: "orders"}, false},
		{"public.*", "public.audit*", change.Name{Schema: "public", Table: "audit_log"}, false},
		{"*.*", "", change.Name{Schema: "a", Table: "b.c"}, true},
		{"*.*", "", change.Name{Schema: "a", Table: "b/c"}, true},
		{"orders", "", change.Name{Schema: "public", Table: "orders"}, true},
		{"public.orders", "", change.Name{Schema: "public", Table: "Orders"}, false},
		{`public."a.b"`, "", change.Name{Schema: "public", Table: "a.b"}, true},
		{`"we.ird".t`, "", change.Name{Schema: "we.ird", Table: "t"}, true},
		{`public."q""q"`, "", change.Name{Schema: "public", Table: `q"q`}, true},
		{"public.t?", "", change.Name{Schema: "public", Table: "t1"}, true},
	} {
		s := spec(c.pattern)
		if c.except != "" {
			s.Except = []string{c.except}
		}
		if got := s.Matches(c.name); got != c.want {
			t.Errorf("%s except %q on %s: %v, want %v", c.pattern, c.except, c.name, got, c.want)
		}
	}
}

func TestTargetNames(t *testing.T) {
	for _, c := range []struct {
		target string
		from   change.Name
		want   string
	}{
		{"", change.Name{Schema: "public", Table: "orders"}, "main.orders"},
		{"", change.Name{Schema: "sales", Table: "orders"}, "sales.orders"},
		{"history", change.Name{Schema: "public", Table: "orders"}, "main.history"},
		{"hist.orders", change.Name{Schema: "public", Table: "orders"}, "hist.orders"},
		{"{schema}_{table}", change.Name{Schema: "sales", Table: "orders"}, "main.sales_orders"},
		{"{schema}.{table}_h", change.Name{Schema: "sales", Table: "orders"}, "sales.orders_h"},
	} {
		s := spec("x")
		s.Target = c.target
		if got := s.TargetFor(c.from, "public", "main").String(); got != c.want {
			t.Errorf("target %q of %s: %s, want %s", c.target, c.from, got, c.want)
		}
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		change func(*flow.Spec)
		want   string
	}{
		{func(s *flow.Spec) { s.Source = "" }, "needs `source`"},
		{func(s *flow.Spec) { s.SCDType = 4 }, "stored_as_scd_type"},
		{func(s *flow.Spec) { s.ColumnList, s.ExceptColumnList = []string{"a"}, []string{"b"} }, "exclude each other"},
		{func(s *flow.Spec) { s.TrackHistory = []string{"a"} }, "stored_as_scd_type: 2"},
		{func(s *flow.Spec) { s.SCDType = 2; s.AppendOnly = true }, "append_only"},
		{func(s *flow.Spec) { s.Except = []string{"a"} }, "except goes with a pattern"},
		{func(s *flow.Spec) { s.Source = "public.*"; s.Target = "one" }, "{table}"},
		{func(s *flow.Spec) { s.Source = "public.[" }, "malformed"},
		{func(s *flow.Spec) { s.HistoryStart = "now" }, "history_start"},
	} {
		s := spec("public.t")
		c.change(&s)
		err := s.Validate()
		if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
	s := spec("public.t")
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesWhatDoesNotGoWithABitemporalTarget(t *testing.T) {
	for _, c := range []struct {
		change func(*flow.Spec)
		want   string
	}{
		{func(s *flow.Spec) {}, ""},
		{func(s *flow.Spec) { s.Sequenced.IgnoreNull = true }, ""},
		{func(s *flow.Spec) { s.SCDType = 2 }, "system_sequence_by goes with"},
		{func(s *flow.Spec) { s.Sequenced.SystemSequenceBy = nil }, "needs system_sequence_by"},
		{func(s *flow.Spec) { s.Sequenced = flow.Sequenced{} }, "needs sequence_by"},
		{func(s *flow.Spec) { s.Sequenced.SequenceBy = []string{"at", "n"} }, "one column"},
		{func(s *flow.Spec) { s.Sequenced.SystemSequenceBy = []string{"known", "n"} }, "one column"},
		{func(s *flow.Spec) { s.Sequenced.TruncateWhen = "true" }, "apply_as_truncates"},
		{func(s *flow.Spec) { s.Sequenced.ColumnsToUpdate = "c" }, "columns_to_update"},
		{func(s *flow.Spec) { s.TrackHistory = []string{"a"} }, "tracks every column"},
		{func(s *flow.Spec) { s.TrackHistoryExcept = []string{"a"} }, "tracks every column"},
		{func(s *flow.Spec) { s.Sequenced.Global, s.Sequenced.QuarantineBeyond = true, true }, "no delete is forgotten"},
		{func(s *flow.Spec) { s.AppendOnly = true }, "append_only"},
		{func(s *flow.Spec) { s.Snapshot = &flow.Snapshot{} }, "snapshots go into"},
		{func(s *flow.Spec) { s.Source = "public.*" }, "pattern"},
	} {
		s := spec("public.t")
		s.SCDType, s.Keys = flow.Bitemporal, []string{"id"}
		s.Sequenced = flow.Sequenced{SequenceBy: []string{"at"}, SystemSequenceBy: []string{"known"}, Feed: true}
		c.change(&s)
		err := s.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
	table := &change.Table{Columns: []change.Column{{Name: "id"}, {Name: "__system_end_at"}}}
	s := spec("public.t")
	if _, _, _, err := s.Columns(table, []string{"id"}); err != nil {
		t.Errorf("type 1: %v", err)
	}
	s.SCDType = flow.Bitemporal
	if _, _, _, err := s.Columns(table, []string{"id"}); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("reserved name: %v", err)
	}
}

func TestColumnsChooseAndCheck(t *testing.T) {
	table := &change.Table{Name: change.Name{Schema: "public", Table: "t"}}
	for _, c := range []string{"id", "name", "city", "note"} {
		table.Columns = append(table.Columns, change.Column{Name: c})
	}
	s := spec("public.t")
	s.SCDType = 2
	s.ExceptColumnList = []string{"note"}
	s.TrackHistoryExcept = []string{"city"}
	chosen, keys, tracked, err := s.Columns(table, []string{"id"})
	if err != nil || fmt.Sprint(chosen) != "[0 1 2]" || !keys[0] || tracked[0] || !tracked[1] || tracked[2] {
		t.Fatalf("%v %v %v %v", chosen, keys, tracked, err)
	}
	s.ExceptColumnList = []string{"id"}
	if _, _, _, err = s.Columns(table, []string{"id"}); err == nil || !strings.Contains(err.Error(), "key column id") {
		t.Errorf("a key left out: %v", err)
	}
	s.ExceptColumnList = []string{"nope", "neither"}
	if _, _, _, err = s.Columns(table, []string{"id"}); err == nil || !strings.Contains(err.Error(), "nope, neither") {
		t.Errorf("unknown columns: %v", err)
	}
	s.ExceptColumnList = nil
	table.Columns[3].Name = "__start_at"
	if _, _, _, err = s.Columns(table, []string{"id"}); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("reserved name: %v", err)
	}
	s.ExceptColumnList, s.TrackHistoryExcept = []string{"__start_at"}, nil
	if chosen, _, _, err = s.Columns(table, []string{"id"}); err != nil || len(chosen) != 3 {
		t.Errorf("a reserved name left out: %v, %v", chosen, err)
	}
	s.ExceptColumnList, s.ColumnList = nil, []string{"id", "city"}
	if chosen, _, _, err = s.Columns(table, []string{"id"}); err != nil || len(chosen) != 2 {
		t.Errorf("a reserved name not selected: %v, %v", chosen, err)
	}
	s.ColumnList, s.SCDType = nil, 1
	if chosen, _, _, err = s.Columns(table, []string{"id", "__start_at"}); err != nil || len(chosen) != 4 {
		t.Errorf("a history's columns in a type 1 target: %v, %v", chosen, err)
	}
}

func TestColumnsAreResolvedByTheirOnlySpelling(t *testing.T) {
	table := &change.Table{Name: change.Name{Schema: "public", Table: "t"}}
	for _, c := range []string{"userid", "Name", "odd", "Odd", "n"} {
		table.Columns = append(table.Columns, change.Column{Name: c})
	}
	s := spec("public.t")
	s.Keys, s.ColumnList, s.TrackHistory = []string{"userId"}, []string{"userId", "NAME", "Odd", "ODD", "nobody"}, []string{"name"}
	s.Sequenced = flow.Sequenced{SequenceBy: []string{"N", "_lsn"}, IgnoreNullList: []string{"name"}, ColumnsToUpdate: "NAME", DeleteWhen: "OP = 'D'"}
	before := fmt.Sprintf("%+v", s)
	r := s.Resolved(table)
	if got := fmt.Sprint(r.Keys, r.ColumnList, r.TrackHistory, r.Sequenced.SequenceBy, r.Sequenced.IgnoreNullList, r.Sequenced.ColumnsToUpdate, r.Sequenced.DeleteWhen); got != "[userid] [userid Name Odd ODD nobody] [Name] [n _lsn] [Name]NameOP = 'D'" {
		t.Errorf("resolved to %s", got)
	}
	if after := fmt.Sprintf("%+v", s); after != before {
		t.Errorf("the flow itself has changed: %s", after)
	}
	s.Source = "public.*"
	if s.Resolved(table) != &s {
		t.Error("a pattern is resolved, although it means many relations")
	}
}
