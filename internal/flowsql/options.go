package flowsql

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/flow"
)

// knobs are what the properties of a table say of the flows into it.
type knobs struct {
	retention  time.Duration
	changeFeed bool
	feedKeep   *time.Duration
	global     bool
	quarantine bool
	fail       bool
	start      string
	share      *float64
	skip       []string
	at         map[string]Span // where each was said
}

// settings are the properties that this program understands, in lower case, in the order
// of the documentation.
var settings = []string{
	"pipelines.cdc.tombstoneGCThresholdInSeconds",
	"tailrace.tombstone_retention", "tailrace.change_feed", "tailrace.change_feed_retention", "tailrace.sequence_scope",
	"tailrace.late_beyond_retention", "tailrace.on_bad_event", "tailrace.history_start", "tailrace.max_delete_share", "tailrace.skip_change_commits",
}

// tableOptions judges everything about a table but its flow.
func (c *compiler) tableOptions(d *dataset) {
	t, f := d.table, d.file
	d.knobs = knobs{retention: c.plan.retention, start: flow.HistoryStartSnapshot, at: map[string]Span{}}
	if t.Private {
		c.note(f, t.Span, "PRIVATE is ignored: the target is a table of the destination like any other")
	}
	if len(t.Columns) > 0 {
		c.note(f, t.Columns[0].Span, "declared columns are ignored: names and types of a target's columns come from what its flow reads")
	}
	for _, e := range t.Expectations {
		if slices.ContainsFunc(d.expect, func(o flow.Expectation) bool { return o.Name == e.Name.Text }) {
			c.bad(f, e.Name.Span, "give one of them another name", "expectation %s stands twice", e.Name.Text)
			continue
		}
		text, _ := e.Condition.render()
		action := map[string]string{"": flow.Warn, "DROP ROW": flow.Drop, "FAIL UPDATE": flow.Fail}[e.Action]
		d.expect = append(d.expect, flow.Expectation{Name: e.Name.Text, Condition: text, Action: action})
	}
	for _, k := range t.Constraints {
		c.note(f, k.Span, "PRIMARY KEY and FOREIGN KEY are ignored: KEYS of the flow says which row is which")
	}
	for _, p := range t.Clauses.Properties {
		c.property(d, p)
	}
	o := &t.Clauses
	if o.Using != nil {
		c.note(f, o.Using.Span, "USING DELTA is ignored: a destination stores its tables in its own way")
	}
	if o.Partitioned != nil {
		c.note(f, o.Partitioned[0].Span, "PARTITIONED BY is ignored: a destination stores its tables in its own way")
	}
	if o.Cluster != nil {
		c.note(f, o.Cluster.Span, "CLUSTER BY is ignored: a destination stores its tables in its own way")
	}
	if o.Location != nil {
		c.note(f, o.Location.Span, "LOCATION is ignored: targets lie in the destination")
	}
	if o.Comment != nil {
		c.note(f, o.Comment.Span, "COMMENT is ignored")
	}
	if o.Collation != nil && !strings.EqualFold(o.Collation.Text, "UTF8_BINARY") {
		c.bad(f, o.Collation.Span, "leave it out: texts compare by their bytes", "DEFAULT COLLATION %s is refused: it would change what is equal", o.Collation.Text)
	}
	if o.Filter != nil {
		c.bad(f, o.Filter.Span, "give rights, or make a view in the destination, and take the clause out", "WITH ROW FILTER is refused: the target would show rows that it hides")
	}
}

// columns judges the properties of declared columns; keys are those of a flow.
func (c *compiler) columns(d *dataset, keys []Name) {
	for _, column := range d.table.Columns {
		for _, p := range column.Properties {
			at, name := p.Span, column.Name.Text
			switch p.Kind {
			case "COMMENT":
				c.note(d.file, at, "COMMENT is ignored")
			case "PRIMARY KEY", "REFERENCES":
				c.note(d.file, at, "PRIMARY KEY and FOREIGN KEY are ignored: KEYS of the flow says which row is which")
			case "NOT NULL":
				if !slices.ContainsFunc(keys, func(k Name) bool { return strings.EqualFold(k.Text, name) }) {
					c.bad(d.file, at, "CONSTRAINT "+name+"_is_there EXPECT ("+column.Name.sql()+" IS NOT NULL) ON VIOLATION FAIL UPDATE", "NOT NULL of column %s is refused: it would not be enforced", name)
				}
			case "MASK":
				c.bad(d.file, at, "leave the column out with COLUMNS * EXCEPT, or make a view in the destination", "MASK of column %s is refused: the target would show what it hides", name)
			default:
				c.bad(d.file, at, "compute it in the source, or in a view of the destination", "%s of column %s is refused: flows write what they read", p.Kind, name)
			}
		}
	}
}

// property takes one of TBLPROPERTIES.
func (c *compiler) property(d *dataset, p Property) {
	value := p.Value.text
	if p.Value.kind == tokString {
		value = unquoteString(value)
	}
	key := strings.ToLower(p.Key)
	bad := func(what string) { c.bad(d.file, p.Span, "", "%s is %s, not %q", p.Key, what, value) }
	known := false
	for _, s := range settings {
		known = known || strings.ToLower(s) == key
	}
	switch {
	case known:
		d.knobs.at[key] = p.Span
	case strings.HasPrefix(key, "tailrace."):
		hint := "known are " + strings.Join(settings, ", ")
		if best := nearest(p.Key, settings); best != "" {
			hint = "did you mean " + best + "?"
		}
		c.bad(d.file, p.Span, hint, "there is no property %s", p.Key)
		return
	case key == "delta.enablechangedatafeed":
		c.note(d.file, p.Span, "property %s is ignored: 'tailrace.change_feed' = 'true' keeps a change feed of the target (docs/changefeed.md)", p.Key)
		return
	default:
		c.note(d.file, p.Span, "property %s is ignored: it has no meaning here", p.Key)
		return
	}
	word := func(into *bool, no, yes string) {
		if value != no && value != yes {
			bad(no + " or " + yes)
		}
		*into = value == yes
	}
	k := &d.knobs
	switch key {
	case "pipelines.cdc.tombstonegcthresholdinseconds":
		n, err := strconv.ParseInt(value, 10, 40)
		if err != nil || n <= 0 || n > 1<<33 {
			bad("a number of seconds above 0")
		}
		k.retention = time.Duration(n) * time.Second
	case "tailrace.tombstone_retention":
		var err error
		if k.retention, err = time.ParseDuration(value); err != nil || k.retention <= 0 {
			bad("a duration such as 48h")
		}
	case "tailrace.change_feed":
		word(&k.changeFeed, "false", "true")
	case "tailrace.change_feed_retention":
		keep, err := time.ParseDuration(value)
		if err != nil || keep < 0 {
			bad("a duration such as 168h")
		}
		k.feedKeep = &keep
	case "tailrace.sequence_scope":
		word(&k.global, "key", "global")
	case "tailrace.late_beyond_retention":
		word(&k.quarantine, "apply", "quarantine")
	case "tailrace.on_bad_event":
		word(&k.fail, "quarantine", "fail")
	case "tailrace.history_start":
		if k.start = value; value != flow.HistoryStartSnapshot && value != flow.HistoryStartInfinity {
			bad(flow.HistoryStartSnapshot + " or " + flow.HistoryStartInfinity)
		}
	case "tailrace.max_delete_share":
		share, err := strconv.ParseFloat(value, 64)
		if err != nil || share < 0 || share > 1 {
			bad("a part between 0 and 1")
		}
		k.share = &share
	case "tailrace.skip_change_commits":
		for _, op := range strings.Split(value, ",") {
			if op = strings.TrimSpace(op); op != "update" && op != "delete" && op != "truncate" {
				bad("a list of update, delete, truncate")
				return
			}
			k.skip = append(k.skip, op)
		}
	}
}
