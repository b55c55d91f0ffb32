package flowsql

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

// YAML is the plan as `relations` and `flows` of the configuration: what a person would
// have written. What has its default is left out. The error says what the configuration
// cannot hold.
func (p *Plan) YAML() (string, error) {
	y := &yamlWriter{retention: p.retention}
	if len(p.Relations) > 0 {
		y.line(0, "relations:")
	}
	for i := range p.Relations {
		y.relation(&p.Relations[i])
	}
	if len(p.Flows) > 0 {
		y.line(0, "flows:")
	}
	for i := range p.Flows {
		y.flow(&p.Flows[i])
	}
	return y.String(), y.err
}

type yamlWriter struct {
	strings.Builder
	retention time.Duration // the default
	first     bool          // the next key begins an item
	err       error
}

func (y *yamlWriter) line(depth int, format string, args ...any) {
	y.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(y, format+"\n", args...)
}

// key writes a key of a flow, whose first one stands behind a dash.
func (y *yamlWriter) key(name, value string) {
	dash := "    "
	if y.first {
		dash, y.first = "  - ", false
	}
	y.WriteString(dash + name + ": " + value + "\n")
}

// words that YAML takes for something else than a text.
var yamlWords = []string{"true", "false", "yes", "no", "on", "off", "null", "~", "y", "n"}

// text writes a text: bare where nothing in it means anything to YAML.
func (y *yamlWriter) text(s string) string {
	if strings.Contains(s, "${") && strings.Contains(s[strings.Index(s, "${"):], "}") {
		y.err = fault.Badly("the configuration would take ${...} in %q for a variable", s)
	}
	plain := s != "" && !slices.Contains(yamlWords, strings.ToLower(s)) && (s[0] == '_' || s[0]|0x20 >= 'a' && s[0]|0x20 <= 'z')
	for i := range len(s) {
		c := s[i]
		plain = plain && (c == '_' || c == '.' || c == '/' || c == '-' || isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z')
	}
	switch {
	case plain:
		return s
	case strings.ContainsAny(s, `"\`) && !strings.Contains(s, "'") && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f }):
		return "'" + s + "'"
	}
	return doubleQuoted(s)
}

// doubleQuoted writes a text in double quotes, in which YAML knows escapes.
func doubleQuoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r > 0xffff || r >= 0xd800 && r < 0xe000 || r == 0xfffe || r == 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func (y *yamlWriter) list(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = y.text(n)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// names is a list that may be one name.
func (y *yamlWriter) names(names []string) string {
	if len(names) == 1 {
		return y.text(names[0])
	}
	return y.list(names)
}

func (y *yamlWriter) columns(columns []flow.Column) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = y.text(c.Name) + ": " + y.text(c.Type)
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// duration writes 48h0m0s as 48h.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (y *yamlWriter) relation(r *FileRelation) {
	y.line(1, "%s:", y.text(r.Name))
	y.line(2, "path: %s", y.text(r.Path))
	y.line(2, "format: %s", r.Format)
	if len(r.Columns) > 0 {
		y.line(2, "columns: %s", y.columns(r.Columns))
	}
	if r.Header != nil {
		y.line(2, "header: %t", *r.Header)
	}
	if r.Delimiter != "" {
		y.line(2, "delimiter: %s", y.text(r.Delimiter))
	}
	if r.Null != "" {
		y.line(2, `"null": %s`, y.text(r.Null))
	}
}

func (y *yamlWriter) flow(s *flow.Spec) {
	y.first = true
	q := &s.Sequenced
	text := func(key, value string) {
		if value != "" {
			y.key(key, y.text(value))
		}
	}
	list := func(key string, names []string) {
		if len(names) > 0 {
			y.key(key, y.list(names))
		}
	}
	names := func(key string, names []string) {
		if len(names) > 0 {
			y.key(key, y.names(names))
		}
	}
	word := func(key, value string, say bool) {
		if say {
			y.key(key, value)
		}
	}
	if s.Snapshot == nil {
		text("source", s.Source)
		word("source_kind", "feed", q.Feed && !s.Files)
		list("skip_change_commits", q.SkipChange)
	}
	text("target", s.Target)
	text("name", q.Name)
	word("once", "true", s.Once)
	word("stored_as_scd_type", map[int]string{2: "2", flow.Bitemporal: "bitemporal"}[s.SCDType], s.SCDType != 1)
	list("keys", s.Keys)
	names("sequence_by", q.SequenceBy)
	names("system_sequence_by", q.SystemSequenceBy)
	word("sequence_scope", "global", q.Global)
	text("apply_as_deletes", q.DeleteWhen)
	text("apply_as_truncates", q.TruncateWhen)
	list("column_list", s.ColumnList)
	list("except_column_list", s.ExceptColumnList)
	list("track_history_column_list", s.TrackHistory)
	list("track_history_except_column_list", s.TrackHistoryExcept)
	word("history_start", s.HistoryStart, s.HistoryStart != flow.HistoryStartSnapshot)
	word("ignore_null_updates", "true", q.IgnoreNull)
	list("ignore_null_updates_column_list", q.IgnoreNullList)
	list("ignore_null_updates_except_column_list", q.IgnoreNullExcept)
	text("columns_to_update", q.ColumnsToUpdate)
	word("tombstone_retention", duration(q.TombstoneRetention), q.TombstoneRetention != y.retention)
	word("late_beyond_retention", "quarantine", q.QuarantineBeyond)
	word("on_bad_event", "fail", q.FailOnBad)
	word("change_feed", "true", s.ChangeFeed)
	word("change_feed_retention", duration(s.FeedKeep), s.ChangeFeed && s.FeedKeep != flow.DefaultFeedKeep)
	if len(s.Expect) > 0 {
		y.line(2, "expect:")
		for _, e := range s.Expect {
			action := ""
			if e.Action != flow.Warn {
				action = ", on_violation: " + e.Action
			}
			y.line(3, "%s: {condition: %s%s}", y.text(e.Name), y.text(e.Condition), action)
		}
	}
	if s.Snapshot != nil {
		y.snapshot(s.Snapshot)
	}
}

func (y *yamlWriter) snapshot(n *flow.Snapshot) {
	y.line(2, "snapshot:")
	text := func(key, value string) {
		if value != "" {
			y.line(3, "%s: %s", key, y.text(value))
		}
	}
	text("relation", n.Relation)
	text("query", n.Query)
	text("path", n.Path)
	text("format", n.Format)
	if len(n.Columns) > 0 {
		y.line(3, "columns: %s", y.columns(n.Columns))
	}
	if n.Header != nil {
		y.line(3, "header: %t", *n.Header)
	}
	text("delimiter", n.Delimiter)
	text(`"null"`, n.Null)
	text("version_type", n.VersionType)
	switch n.Version {
	case flow.ByQuery:
		y.line(3, "version: {query: %s}", y.text(n.VersionQuery))
	case "":
	default:
		y.line(3, "version: %s", n.Version)
	}
	if n.Every > 0 {
		y.line(3, "every: %s", duration(n.Every))
	}
	text("cron", n.Cron)
	if n.MaxDeleteShare != flow.DefaultDeleteShare {
		y.line(3, "max_delete_share: %s", strconv.FormatFloat(n.MaxDeleteShare, 'g', -1, 64))
	}
}
