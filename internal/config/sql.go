package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tailrace/internal/fault"
	"tailrace/internal/flowsql"
)

// Catalogs maps catalogs, or catalog.schema, of names in SQL to schemas, in the order of
// the file.
type Catalogs []Catalog

// Catalog is one of them.
type Catalog struct{ Name, Schema string }

// Written is what the files of `sql` hold.
type Written struct {
	Files []*flowsql.File // in the order of their names
	Plan  *flowsql.Plan
}

// SQL returns what the files of `sql` hold; nil if there are none.
func (c *Config) SQL() *Written { return c.written }

// readSQL reads and compiles the files of `sql`, whose relative patterns begin at folder.
// Their relations are added to those of the configuration; Specs has their flows.
func (c *Config) readSQL(name, folder string) error {
	if len(c.SQLFiles) == 0 {
		c.SQLFiles = nil
		if len(c.SQLCatalogs) > 0 {
			return fault.Badly("%s: sql_catalogs goes with sql", name)
		}
		return nil
	}
	var paths []string
	for _, pattern := range c.SQLFiles {
		full := pattern
		if !filepath.IsAbs(full) {
			full = filepath.Join(folder, full)
		}
		found, err := filepath.Glob(full)
		if err != nil {
			return fault.Badly("%s: sql: pattern %q is malformed", name, pattern)
		}
		if len(found) == 0 {
			return fault.Badly("%s: sql: no file matches %q (relative patterns begin at the folder of the configuration)", name, pattern)
		}
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	w := &Written{}
	var wrong []string
	for _, path := range slices.Compact(paths) {
		text, err := os.ReadFile(path)
		if err != nil {
			var pe *os.PathError
			if errors.As(err, &pe) {
				err = pe.Err
			}
			return fault.Badly("read SQL file %s: %v", path, err)
		}
		f, err := flowsql.Parse(path, string(text))
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		w.Files = append(w.Files, f)
	}
	if len(wrong) > 0 {
		return fault.Badly("%s", strings.Join(wrong, "\n"))
	}
	o := flowsql.Options{Source: c.Source.Kind, Catalogs: map[string]string{}, Retention: c.retention()}
	for _, r := range c.Relations {
		o.Relations = append(o.Relations, r.Name)
	}
	for _, k := range c.SQLCatalogs {
		o.Catalogs[k.Name] = k.Schema
	}
	var err error
	if w.Plan, err = flowsql.Compile(w.Files, o); err != nil {
		return err
	}
	for _, r := range w.Plan.Relations {
		relation := Relation{Name: r.Name, Path: r.Path, Format: r.Format, Header: r.Header, Delimiter: r.Delimiter, Null: r.Null}
		for _, column := range r.Columns {
			relation.Columns = append(relation.Columns, Column(column))
		}
		c.Relations = append(c.Relations, relation)
	}
	c.written = w
	return nil
}

// takeCatalogs reads `sql_catalogs` and takes it out of the document, which strict has
// accepted: names keep their case and their dots.
func takeCatalogs(root *yaml.Node) (out Catalogs) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != "sql_catalogs" {
			continue
		}
		for list := root.Content[i+1].Content; len(list) > 1; list = list[2:] {
			out = append(out, Catalog{Name: list[0].Value, Schema: list[1].Value})
		}
		root.Content = slices.Delete(root.Content, i, i+2)
		break
	}
	return out
}
