package flowsql

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"tailrace/internal/flow"
)

// snapshot compiles AUTO CDC FROM SNAPSHOT. A table and a plain selection of its columns
// is a snapshot of the relation; another query goes to the source; files are those whose
// names tell their version.
func (c *compiler) snapshot(e *entry, s *flow.Spec) {
	f, body := e.file, e.body.Snapshot
	s.Keys = c.texts(f, body.Keys)
	if body.StoredAs != nil {
		s.SCDType = body.StoredAs.Type
	}
	c.track(f, s, body.TrackHistory)
	s.Snapshot = &flow.Snapshot{MaxDeleteShare: flow.DefaultDeleteShare}
	if share := e.target.knobs.share; share != nil {
		s.Snapshot.MaxDeleteShare = *share
	}
	s.Expect = e.target.expect
	if !slices.ContainsFunc(c.entries, func(o entry) bool { return o.target == e.target && o.body.CDC != nil }) {
		for _, key := range []string{"tailrace.sequence_scope", "tailrace.late_beyond_retention", "tailrace.on_bad_event", "tailrace.skip_change_commits"} {
			if at, said := e.target.knobs.at[key]; said {
				c.bad(e.target.file, at, "", "%s goes with a change feed: a snapshot holds whole rows at its version", key)
			}
		}
	}
	c.schedule(e, s.Snapshot)
	c.what(e, &body.From, s)
	s.Source = s.Snapshot.What()
	if s.Snapshot.Path != "" || len(c.problems) > 0 {
		return
	}
	if s.Snapshot.Version = flow.ByCounter; body.Version != nil {
		s.Snapshot.Version = flow.ByQuery
		s.Snapshot.VersionQuery = c.version(e, body.Version)
	}
}

// what says what a snapshot is of.
func (c *compiler) what(e *entry, r *Relation, s *flow.Spec) {
	f := e.file
	switch {
	case r.Function != nil:
		c.snapshotFiles(e, nil, r.Function, s)
		return
	case r.Table != nil:
		if name, ok := c.snapshotTable(e, r.Table); ok {
			s.Snapshot.Relation = name.spec()
		}
		return
	}
	q := r.Query
	only := simple(q)
	if only != nil && len(only.From) == 1 && !only.Distinct && only.GroupBy == nil && only.Having == nil && only.From[0].Query == nil && !only.From[0].Stream {
		from := &only.From[0]
		if from.Function != nil {
			c.snapshotFiles(e, only, from.Function, s)
			return
		}
		if columns, except, plain := plainItems(only); plain && only.Where == nil {
			if name, ok := c.snapshotTable(e, from.Table); ok {
				s.Snapshot.Relation = name.spec()
				s.ColumnList, s.ExceptColumnList = c.texts(f, columns), c.texts(f, except)
				for _, k := range e.body.Snapshot.Keys {
					is := func(n Name) bool { return strings.EqualFold(n.Text, k.Text) }
					if len(columns) > 0 && !slices.ContainsFunc(columns, is) || slices.ContainsFunc(except, is) {
						c.bad(f, k.Span, "add it to the SELECT", "key column %s is not in the snapshot", k.Text)
					}
				}
			}
			return
		}
	}
	s.Snapshot.Query = c.forSource(e, q)
}

// snapshotTable is a table of the source.
func (c *compiler) snapshotTable(e *entry, p Path) (place, bool) {
	name := c.resolve(e.file, p, e.scope)
	if c.Source == "files" {
		c.bad(e.file, p.span(), "a snapshot of files is read with read_files(...)", "the source is files: there is no table %s", p)
		return name, false
	}
	if d := c.datasets[name.key()]; d != nil {
		d.read = d.read || d.view != nil
		c.cannot(e.file, p.span(), "a snapshot is of a table of the source, of a query of it, or of files", "a snapshot of %s, which this pipeline itself makes,", p)
		return name, false
	}
	return name, true
}

// plainItems returns what a SELECT of plain columns selects: some, or all but some.
func plainItems(s *Select) (columns, except []Name, plain bool) {
	for _, i := range s.Items {
		if i.Star {
			return nil, i.Except, len(s.Items) == 1
		}
		n, ok := plainColumn(&i.Value)
		if !ok || i.Alias != nil && i.Alias.Text != n.Text {
			return nil, nil, false
		}
		columns = append(columns, n)
	}
	return columns, nil, true
}

// plainColumn is the column if a text is one, without a table's name before it.
func plainColumn(t *Text) (Name, bool) {
	if len(t.words) != 1 || t.words[0].kind != tokWord && t.words[0].kind != tokQuoted || t.words[0].word("NULL", "TRUE", "FALSE") {
		return Name{}, false
	}
	w := t.words[0]
	n := Name{Span: Span{w.pos, w.end()}, Text: w.text, Quoted: w.kind == tokQuoted}
	if n.Quoted {
		n.Text = unquoteName(w.text)
	}
	return n, true
}

// newer is the documented way to say "a version that was not there last time". It is what
// a snapshot flow does by itself, so it may stand there and is taken out.
const newer = "NOT EXISTS (SELECT 1 FROM last_snapshot_version()) OR h_version > (SELECT h_last FROM last_snapshot_version())"

// isNewer reports whether a condition is that, of the column named.
func isNewer(t *Text, column Name) bool {
	for words := t.words; ; words = words[1 : len(words)-1] {
		if holes, ok := matches(words, newer); ok {
			return strings.EqualFold(holes["h_version"].text, column.sql()) && holes["h_last"].kind != tokString
		}
		if len(words) < 2 || !words[0].is("(") || !words[len(words)-1].is(")") {
			return false
		}
	}
}

// version renders the version query for the source.
func (c *compiler) version(e *entry, q *Query) string {
	mentions := func(words []token) int {
		return slices.IndexFunc(words, func(w token) bool { return w.word("last_snapshot_version") })
	}
	if at := mentions(q.words); at >= 0 {
		only := simple(q)
		if only != nil && !only.Distinct && only.GroupBy == nil && only.Having == nil && only.Where != nil && len(only.Items) == 1 && len(only.From) == 1 && only.From[0].Table != nil {
			if column, ok := plainColumn(&only.Items[0].Value); ok && isNewer(only.Where, column) {
				// The condition is at the end of such a query.
				without, bare := *q, *only
				without.words, bare.Where = q.words[:len(q.words)-len(only.Where.words)-1], nil
				without.Selects = []Select{bare}
				c.note(e.file, only.Where.Span, "the condition on last_snapshot_version() is left to the flow itself: a version that it had is no new snapshot, and a lower one is refused")
				return c.forSource(e, &without)
			}
		}
		w := q.words[at]
		c.cannot(e.file, Span{w.pos, w.end()}, "SELECT column FROM table WHERE NOT EXISTS (SELECT 1 FROM last_snapshot_version()) OR column > (SELECT column FROM last_snapshot_version())", "last_snapshot_version() in another form than the hint's")
		return ""
	}
	return c.forSource(e, q)
}

// The documented forms of versioned files: h_ words stand for what differs.
const (
	fileOfVersion = "_metadata.file_name = CONCAT(h_before, CAST((SELECT h_version FROM current_snapshot_version()) AS h_text), h_behind)"
	nextFile      = "WITH h_files AS (SELECT CAST(REGEXP_EXTRACT(path, h_pattern, 1) AS h_type) AS h_version FROM list_files(h_folder) WHERE path RLIKE h_like) " +
		"SELECT h_version FROM h_files WHERE (NOT EXISTS (SELECT 1 FROM last_snapshot_version()) OR h_version > (SELECT h_last FROM last_snapshot_version())) ORDER BY h_version LIMIT 1"
)

// literally escapes what means something in the path of snapshot files.
var literally = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `(`, `\(`, `)`, `\)`, `|`, `\|`)

// snapshotFiles compiles a snapshot of files: the documented form, in which a name of a
// file is put together from its version, and the version query lists the files.
func (c *compiler) snapshotFiles(e *entry, q *Select, call *Call, s *flow.Spec) {
	f, body := e.file, e.body.Snapshot
	r, ok := c.call(f, call)
	if !ok {
		return
	}
	form := "docs/sql.md shows the form: a name of a file put together with CONCAT from current_snapshot_version(), and a version query over list_files"
	var file map[string]token
	if q != nil && q.Where != nil {
		if file, ok = matches(q.Where.words, fileOfVersion); !ok {
			c.cannot(f, q.Where.Span, form, "this condition on snapshot files")
			return
		}
	}
	if file == nil || body.Version == nil {
		c.cannot(f, call.Span, form, "a snapshot of files without versions")
		return
	}
	next, ok := matches(body.Version.words, nextFile)
	if !ok {
		c.cannot(f, body.Version.Span, form, "this version query of snapshot files")
		return
	}
	before, behind := unquoteString(file["h_before"].text), unquoteString(file["h_behind"].text)
	kind := strings.ToLower(next["h_type"].text)
	digits := map[string]string{"bigint": `[0-9]+`, "int": `[0-9]+`, "long": `[0-9]+`, "date": `[0-9]{4}-[0-9]{2}-[0-9]{2}`, "string": `[^/]+`}[kind]
	sample := map[string]string{"date": "2024-01-31", "string": "x"}[kind]
	if sample == "" {
		sample = "17"
	}
	switch pattern, err := regexp.Compile(unquoteString(next["h_pattern"].text)); {
	case digits == "":
		c.cannot(f, body.Version.Span, "BIGINT, DATE or STRING", "a version of type %s", next["h_type"].text)
		return
	case err != nil:
		c.bad(f, body.Version.Span, "", "the pattern of REGEXP_EXTRACT is no regular expression")
		return
	case path.Clean(unquoteString(next["h_folder"].text)) != path.Clean(r.path):
		c.bad(f, body.Version.Span, "", "list_files lists another folder than read_files reads")
		return
	case func() bool {
		found := pattern.FindStringSubmatch("/" + before + sample + behind)
		return len(found) < 2 || found[1] != sample
	}():
		c.bad(f, body.Version.Span, "", "the pattern of REGEXP_EXTRACT does not find the version in the names that CONCAT makes")
		return
	}
	n := s.Snapshot
	n.Path = path.Join(r.path, literally.Replace(before)+"(?P<version>"+digits+")"+literally.Replace(behind))
	n.Format, n.Header, n.Delimiter, n.Null = r.format, r.header, r.delimiter, r.null
	if kind == "date" || kind == "string" {
		n.VersionType = map[string]string{"date": "date", "string": "text"}[kind]
	}
	c.fileColumns(f, q, &r, s)
}

// fileColumns declares the columns of snapshot files, from the option schema or from the
// CASTs of the query.
func (c *compiler) fileColumns(f *File, q *Select, r *files, s *flow.Spec) {
	n := s.Snapshot
	for _, column := range r.columns {
		n.Columns = append(n.Columns, flow.Column(column))
	}
	if columns, except, plain := plainItems(q); plain {
		s.ColumnList, s.ExceptColumnList = c.texts(f, columns), c.texts(f, except)
		return
	}
	if len(r.columns) > 0 {
		c.cannot(f, q.Span, "leave one of them out", "a SELECT that computes columns beside the option schema")
		return
	}
	for _, i := range q.Items {
		kind := "string"
		column, ok := plainColumn(&i.Value)
		if !ok {
			cast, is := matches(i.Value.words, "CAST(h_column AS h_type)")
			if is {
				column, ok = plainColumn(&Text{words: []token{cast["h_column"]}})
				kind = fileType(cast["h_type"].text)
			}
		} else {
			c.note(f, i.Value.Span, "columns of snapshot files without a CAST beside others with one are texts: %s", column.Text)
		}
		if !ok || i.Alias != nil && !strings.EqualFold(i.Alias.Text, column.Text) {
			c.cannot(f, i.Value.Span, "a column, or CAST(column AS type) AS column", "a computed column of snapshot files")
			return
		}
		n.Columns = append(n.Columns, flow.Column{Name: column.Text, Type: kind})
	}
}

// matches compares words with a form in which words that begin with h_ stand for one word
// each, the same where they are the same, and returns these.
func matches(words []token, form string) (map[string]token, bool) {
	statements, problem := lex(&File{Name: "form", Text: form})
	if problem != nil || len(statements) != 1 {
		return nil, false
	}
	want := statements[0][:len(statements[0])-1]
	if len(want) != len(words) {
		return nil, false
	}
	holes := map[string]token{}
	for i, w := range want {
		got := words[i]
		switch held, seen := holes[w.text]; {
		case !strings.HasPrefix(w.text, "h_"):
			if w.kind != got.kind || !strings.EqualFold(w.text, got.text) {
				return nil, false
			}
		case got.kind == tokOp, seen && !strings.EqualFold(held.text, got.text):
			return nil, false
		default:
			holes[w.text] = got
		}
	}
	for name, got := range holes {
		if text := slices.Contains([]string{"h_before", "h_behind", "h_pattern", "h_folder", "h_like"}, name); text != (got.kind == tokString) {
			return nil, false
		}
	}
	return holes, true
}

// schedule says when the daemon takes a snapshot.
func (c *compiler) schedule(e *entry, n *flow.Snapshot) {
	s := e.target.table.Clauses.Schedule
	if s == nil {
		return
	}
	f := e.target.file
	switch {
	case s.Trigger:
		c.cannot(f, s.Span, "SCHEDULE EVERY 1 HOUR, or SCHEDULE CRON '0 0 * * * ?'", "TRIGGER ON UPDATE of a snapshot")
	case s.Cron == nil:
		n.Every = time.Duration(s.Every) * map[string]time.Duration{"HOUR": time.Hour, "DAY": 24 * time.Hour, "WEEK": 7 * 24 * time.Hour}[s.Unit]
	default:
		fields, why := cronFields(s.Cron.Value())
		if why != "" {
			c.bad(f, s.Cron.Span, "seconds minutes hours day-of-month month day-of-week, such as '0 30 3 * * ?'", "%s", why)
			return
		}
		if n.Cron = fields; s.Zone != nil {
			zone := s.Zone.Value()
			if _, err := time.LoadLocation(zone); err != nil || zone == "" || strings.ContainsAny(zone, " \t") {
				c.bad(f, s.Zone.Span, "a name such as 'Europe/Berlin'", "time zone %q is not known", zone)
			}
			n.Cron = "CRON_TZ=" + zone + " " + n.Cron
		}
	}
}

var (
	cronDays = []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
	cronDay  = regexp.MustCompile(`\b[1-7]\b`)
)

// cronFields turns an expression of Quartz (with seconds, and days of the week from 1 for
// Sunday) into the five fields of cron.
func cronFields(quartz string) (cron, why string) {
	fields := strings.Fields(strings.ToUpper(quartz))
	if len(fields) != 6 && len(fields) != 7 {
		return "", "the cron expression has six fields, with the seconds first"
	}
	switch {
	case fields[0] != "0":
		return "", "the seconds of the cron expression are 0: a schedule has minutes"
	case len(fields) == 7 && fields[6] != "*":
		return "", "the cron expression names a year"
	case strings.ContainsAny(strings.Join(fields[3:4], "")+fields[5], "#") || strings.HasSuffix(fields[5], "L") || strings.ContainsAny(fields[3], "LW"):
		return "", "L, W and # in the cron expression cannot be run in this version"
	}
	days, step, stepped := strings.Cut(fields[5], "/")
	days = cronDay.ReplaceAllStringFunc(days, func(d string) string { return cronDays[d[0]-'1'] })
	if stepped {
		days += "/" + step
	}
	cron = strings.Join([]string{fields[1], fields[2], fields[3], fields[4], days}, " ")
	return strings.ReplaceAll(cron, "?", "*"), ""
}
