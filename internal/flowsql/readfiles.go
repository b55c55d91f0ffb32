package flowsql

import (
	"path"
	"slices"
	"strings"

	"tailrace/internal/flow"
)

// files is what read_files says.
type files struct {
	path, format    string
	pattern         string // of the names of files in a folder
	header          *bool
	delimiter, null string
	columns         []flow.Column
}

// Options of read_files: those with a meaning here, those that change nothing that is
// seen, and those whose default alone is understood.
var (
	fileOptions  = []string{"format", "header", "sep", "delimiter", "nullValue", "schema", "inferColumnTypes", "multiLine", "rescuedDataColumn", "pathGlobFilter", "fileNamePattern"}
	idleOptions  = []string{"maxFilesPerTrigger", "maxBytesPerTrigger", "schemaEvolutionMode", "useManagedFileEvents", "recursiveFileLookup", "cleanSource", "mode"}
	stiffOptions = map[string]string{"includeexistingfiles": "true", "allowoverwrites": "false", "multiline": "false", "rescueddatacolumn": "_rescued_data", "infercolumntypes": "true", "inferschema": "true", "encoding": "utf-8", "charset": "utf-8"}
)

// call reads the arguments of read_files.
func (c *compiler) call(f *File, call *Call) (out files, ok bool) {
	before := len(c.problems)
	if name := call.Name.String(); !strings.EqualFold(name, "read_files") {
		c.cannot(f, call.Span, "files are read with read_files('path', format => 'json')", "a flow from %s(...)", name)
		return out, false
	}
	where := Span{}
	for i, a := range call.Args {
		value, plain := literal(&a.Value)
		if !plain {
			c.bad(f, a.Value.Span, "", "an argument of read_files is a literal")
			continue
		}
		if a.Name == nil && i == 0 {
			out.path, where = value, a.Value.Span
			continue
		}
		if a.Name == nil {
			c.bad(f, a.Value.Span, "read_files('path', format => 'json')", "expected name => value")
			continue
		}
		if strings.EqualFold(a.Name.Text, "path") {
			out.path, where = value, a.Value.Span
			continue
		}
		c.option(f, &a, value, &out)
	}
	switch {
	case out.path == "":
		c.bad(f, call.Span, "read_files('path', format => 'json')", "read_files has no path")
	case strings.Contains(out.path, "://") && !strings.HasPrefix(out.path, "file:///"), strings.HasPrefix(out.path, "dbfs:"):
		c.cannot(f, where, "give the path under which this machine sees the files", "read_files of another store")
	}
	out.path = strings.TrimPrefix(out.path, "file://")
	if out.format == "" && len(c.problems) == before {
		c.bad(f, call.Span, "format => 'json', 'csv' or 'parquet'", "read_files has no format")
	}
	if out.format == "csv" && out.header == nil {
		no := false // the default there; here it would be true
		out.header = &no
	}
	return out, len(c.problems) == before
}

// option takes one named argument.
func (c *compiler) option(f *File, a *Arg, value string, out *files) {
	name := a.Name.Text
	key := strings.ToLower(name)
	only, stiff := stiffOptions[key]
	if stiff && strings.ToLower(value) != only {
		hint := "leave it out"
		if key == "infercolumntypes" || key == "inferschema" {
			hint = "give the types: schema => 'id STRING, at STRING'"
		}
		c.cannot(f, a.Value.Span, hint, "%s => %s", name, value)
		return
	}
	is := func(list []string) bool {
		return slices.ContainsFunc(list, func(o string) bool { return strings.EqualFold(o, name) })
	}
	switch {
	case stiff:
	case is(idleOptions):
		c.note(f, a.Name.Span, "option %s of read_files is ignored: files are taken as they come, each once (docs/files.md)", name)
	case !is(fileOptions):
		hint := "known are " + strings.Join(fileOptions, ", ")
		if best := nearest(name, slices.Concat(fileOptions, idleOptions)); best != "" {
			hint = "did you mean " + best + "?"
		}
		c.bad(f, a.Name.Span, hint, "option %s of read_files is not understood", name)
	}
	switch key {
	case "format":
		formats := map[string]string{"json": "jsonl", "csv": "csv", "parquet": "parquet"}
		if out.format = formats[strings.ToLower(value)]; out.format == "" {
			c.cannot(f, a.Value.Span, "json, csv and parquet can be read", "read_files of format %s", value)
		}
	case "header":
		yes := strings.EqualFold(value, "true")
		if out.header = &yes; !yes && !strings.EqualFold(value, "false") {
			c.bad(f, a.Value.Span, "", "header is true or false, not %s", value)
		}
	case "sep", "delimiter":
		out.delimiter = value
	case "nullvalue":
		out.null = value
	case "pathglobfilter", "filenamepattern":
		out.pattern = value
	case "schema":
		out.columns = c.declared(f, &a.Value, value)
	}
}

// literal is the value of a text that is one literal.
func literal(t *Text) (string, bool) {
	if len(t.words) != 1 {
		return "", false
	}
	switch w := t.words[0]; {
	case w.kind == tokString:
		return unquoteString(w.text), true
	case w.kind == tokNumber, w.word("TRUE", "FALSE"):
		return w.text, true
	}
	return "", false
}

// declared reads the columns of the option schema.
func (c *compiler) declared(f *File, at *Text, ddl string) (out []flow.Column) {
	inner := &File{Name: "schema", Text: ddl}
	statements, problem := lex(inner)
	if problem == nil && len(statements) == 1 {
		p := &parser{file: inner, words: statements[0]}
		for p.problem == nil {
			n := p.plain("the name of a column")
			p.acceptOp(":")
			from := p.at
			p.dataType()
			kind := p.canonical(from)
			for p.columnProperty() {
				p.property()
			}
			out = append(out, flow.Column{Name: n.Text, Type: fileType(kind)})
			if !p.acceptOp(",") {
				break
			}
		}
		if problem = p.problem; problem == nil && !p.done() {
			p.expected("a comma or the end of the schema")
			problem = p.problem
		}
	}
	switch {
	case problem != nil:
		c.bad(f, at.Span, "schema => 'id INT, name STRING'", "column %d of the schema: %s", problem.Column, problem.What)
	case len(statements) > 1:
		c.bad(f, at.Span, "schema => 'id INT, name STRING'", "the columns of a schema have commas between")
	case len(statements) == 0:
		c.bad(f, at.Span, "schema => 'id INT, name STRING'", "the schema names no column")
	}
	return out
}

// fileType is a type of Spark as relations of files spell it: there timestamp has no
// zone, float has 64 bits, and a decimal without digits keeps all.
func fileType(t string) string {
	switch strings.ToLower(t) {
	case "timestamp", "timestamp_ltz":
		return "timestamptz"
	case "timestamp_ntz":
		return "timestamp"
	case "float", "real":
		return "real"
	case "decimal", "dec", "numeric":
		return "decimal(10,0)"
	}
	return strings.ToLower(t)
}

// glob is the pattern of the files: a folder means every file in it, at any depth, as
// read_files has it.
func (r *files) glob() string {
	last := path.Base(r.path)
	folder := strings.HasSuffix(r.path, "/") || !strings.ContainsAny(r.path, "*?[") && path.Ext(last) == ""
	switch {
	case r.pattern != "" && folder:
		return path.Join(r.path, "**", r.pattern)
	case folder:
		return path.Join(r.path, "**", "*")
	}
	return r.path
}

// readFiles makes a relation of files for a flow: one of its own, because a flow takes
// each file once whatever others take.
func (c *compiler) readFiles(e *entry, f *File, call *Call, s *flow.Spec) {
	r, ok := c.call(f, call)
	if !ok {
		return
	}
	name := e.name
	if name == "" {
		name = e.target.name.table
	}
	taken := slices.ContainsFunc(c.plan.Relations, func(o FileRelation) bool { return o.Name == name })
	if taken || slices.Contains(c.Options.Relations, name) {
		c.bad(f, call.Span, "give the flow a name of its own: CREATE FLOW name AS ...", "the files of this flow go by its name, %s, which names other files already", name)
		return
	}
	c.plan.Relations = append(c.plan.Relations, FileRelation{Name: name, Path: r.glob(), Format: r.format, Columns: r.columns, Header: r.header, Delimiter: r.delimiter, Null: r.null})
	s.Source, s.Files = place{"", name}.spec(), true
}
