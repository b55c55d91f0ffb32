package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"tailrace/internal/fault"
)

// Load reads the file, expands ${VAR} and ${file:PATH}, lets TAILRACE_ variables
// override (TAILRACE_SOURCE_DSN is source.dsn), and validates. Errors are Usage
// errors with file and line; they never hold an expanded value.
func Load(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fault.Badly("read configuration %s: %v", path, err)
	}
	return Parse(path, text)
}

// Parse is Load on text already read; name stands for the file in messages.
func Parse(name string, text []byte) (*Config, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fault.Badly("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return nil, fault.Badly("%s is empty; see config.example.yaml", name)
	}
	root := doc.Content[0]
	if err := strict(name, root, reflect.TypeFor[Config](), ""); err != nil {
		return nil, err
	}
	if err := expand(name, root); err != nil {
		return nil, err
	}
	// Names of relations and of their columns keep their case and order, which a map
	// would lose.
	relations, snapshotColumns, expectations := takeRelations(root), takeSnapshotColumns(root), takeExpectations(root)
	catalogs := takeCatalogs(root)
	nameNull(root, "source", "zero_dates")
	raw := map[string]any{}
	if err := root.Decode(&raw); err != nil {
		return nil, fault.Badly("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	v := viper.New()
	v.SetEnvPrefix("TAILRACE")
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	var bindErr error
	leaves(reflect.TypeFor[Config](), "", func(p string) { bindErr = errors.Join(bindErr, v.BindEnv(p)) })
	if err := errors.Join(bindErr, v.MergeConfigMap(raw)); err != nil {
		return nil, fault.Badly("%s: %v", name, err)
	}
	c := Default()
	hook := mapstructure.ComposeDecodeHookFunc(mapstructure.StringToTimeDurationHookFunc(), mapstructure.TextUnmarshallerHookFunc(), numberToBytes, oneName, oneWord)
	err := v.Unmarshal(&c, func(d *mapstructure.DecoderConfig) { d.TagName = "yaml"; d.DecodeHook = hook })
	if err != nil {
		return nil, fault.Badly("%s: %s", name, describe(err))
	}
	c.Rewind.settle()
	c.Relations, c.SQLCatalogs = relations, catalogs
	for i, columns := range snapshotColumns {
		c.Flows[i].Snapshot.Columns = columns
	}
	for i := range c.Flows {
		c.Flows[i].Expect = expectations[i]
	}
	if err := c.readSQL(name, filepath.Dir(name)); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		var fe *fault.Error
		if errors.As(err, &fe) {
			fe.Op = name + ": " + fe.Op
		}
		return nil, err
	}
	return &c, nil
}

// takeRelations reads `relations` and takes it out of the document, which strict has
// accepted.
func takeRelations(root *yaml.Node) (out Relations) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != "relations" {
			continue
		}
		list := root.Content[i+1].Content
		for j := 0; j+1 < len(list); j += 2 {
			r := Relation{Name: list[j].Value}
			fields := list[j+1].Content
			for k := 0; k+1 < len(fields); k += 2 {
				value := fields[k+1]
				switch fields[k].Value {
				case "path":
					r.Path = value.Value
				case "format":
					r.Format = value.Value
				case "delimiter":
					r.Delimiter = value.Value
				case "null":
					r.Null = value.Value
				case "order":
					r.Order = value.Value
				case "header":
					header := value.Value == "true"
					r.Header = &header
				case "columns":
					r.Columns = columnsOf(value)
				}
			}
			out = append(out, r)
		}
		root.Content = append(root.Content[:i], root.Content[i+2:]...)
		return out
	}
	return nil
}

// columnsOf reads declared columns in their order, with the case of their names.
func columnsOf(n *yaml.Node) (out Columns) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		out = append(out, Column{Name: n.Content[i].Value, Type: n.Content[i+1].Value})
	}
	return out
}

// takeSnapshotColumns reads the columns of snapshot files, by flow, and takes them out of
// the document likewise.
func takeSnapshotColumns(root *yaml.Node) map[int]Columns {
	out := map[int]Columns{}
	flows := valueOf(root, "flows")
	if flows == nil {
		return out
	}
	for i, f := range flows.Content {
		snapshot := valueOf(f, "snapshot")
		if snapshot == nil || snapshot.Kind != yaml.MappingNode {
			continue
		}
		for j := 0; j+1 < len(snapshot.Content); j += 2 {
			if snapshot.Content[j].Value == "columns" {
				out[i] = columnsOf(snapshot.Content[j+1])
				snapshot.Content = append(snapshot.Content[:j], snapshot.Content[j+2:]...)
				break
			}
		}
	}
	return out
}

// takeExpectations reads `expect` of each flow, by the flow's place, and takes it out of
// the document, which strict has accepted: names keep their case and order.
func takeExpectations(root *yaml.Node) map[int]Expectations {
	out := map[int]Expectations{}
	flows := valueOf(root, "flows")
	if flows == nil {
		return out
	}
	for n, flow := range flows.Content {
		for j := 0; j+1 < len(flow.Content); j += 2 {
			if flow.Content[j].Value != "expect" {
				continue
			}
			list := flow.Content[j+1].Content
			for k := 0; k+1 < len(list); k += 2 {
				e := Expectation{Name: list[k].Value}
				for fields := list[k+1].Content; len(fields) > 1; fields = fields[2:] {
					switch fields[0].Value {
					case "condition":
						e.Condition = fields[1].Value
					case "on_violation":
						e.OnViolation = fields[1].Value
					}
				}
				out[n] = append(out[n], e)
			}
			flow.Content = append(flow.Content[:j:j], flow.Content[j+2:]...)
			break
		}
	}
	return out
}

// valueOf is the value of a key of a mapping; nil if it has none.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// oneWord lets a version be written as a word.
func oneWord(from, to reflect.Type, data any) (any, error) {
	if kind, ok := data.(string); ok && to == reflect.TypeFor[SnapshotVersion]() {
		return SnapshotVersion{Kind: kind}, nil
	}
	return data, nil
}

// nameNull makes a text of a null that is written at a path: of a setting that has a
// choice of this name.
func nameNull(n *yaml.Node, path ...string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		value := n.Content[i+1]
		switch {
		case n.Content[i].Value != path[0]:
		case len(path) > 1:
			nameNull(value, path[1:]...)
		case value.Tag == "!!null" && value.Value == "null":
			value.Tag = "!!str"
		}
	}
}

// oneName lets a list of names be written as one name.
func oneName(from, to reflect.Type, data any) (any, error) {
	if name, ok := data.(string); ok && to == reflect.TypeFor[Names]() {
		return Names{name}, nil
	}
	return data, nil
}

func numberToBytes(from, to reflect.Type, data any) (any, error) {
	if to != reflect.TypeFor[Bytes]() {
		return data, nil
	}
	if n, ok := data.(int); ok {
		return Bytes(n), nil
	}
	return data, nil
}

// describe makes mapstructure's report readable and keeps values out of it.
func describe(err error) string {
	var de *mapstructure.DecodeError
	if errors.As(err, &de) {
		return fmt.Sprintf("key %s has a value of the wrong kind", de.Name())
	}
	return "a value has the wrong kind"
}

// strict walks the document against the structure and reports the first unknown
// or repeated key with its line.
func strict(name string, n *yaml.Node, t reflect.Type, path string) error {
	where := func() string {
		if path == "" {
			return "the file"
		}
		return path
	}
	switch {
	case (t == reflect.TypeFor[Names]() || t == reflect.TypeFor[SnapshotVersion]()) && n.Kind == yaml.ScalarNode:
		return nil
	case t == reflect.TypeFor[SCDType]() && n.Kind == yaml.ScalarNode:
		var is SCDType
		if err := is.UnmarshalText([]byte(n.Value)); err != nil && !strings.Contains(n.Value, "${") {
			return fault.Badly("%s:%d: %s is 1, 2 or bitemporal", name, n.Line, where())
		}
		return nil
	case t == reflect.TypeFor[Relations](), t == reflect.TypeFor[Columns](), t == reflect.TypeFor[Expectations](), t == reflect.TypeFor[Catalogs]():
		if n.Kind != yaml.MappingNode {
			return fault.Badly("%s:%d: %s must hold names (`name: ...`)", name, n.Line, where())
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if seen[key.Value] {
				return fault.Badly("%s:%d: name `%s` stands twice in %s", name, key.Line, key.Value, where())
			}
			seen[key.Value] = true
			item := reflect.TypeFor[string]()
			if t == reflect.TypeFor[Relations]() {
				item = reflect.TypeFor[Relation]()
			} else if t == reflect.TypeFor[Expectations]() {
				item = reflect.TypeFor[Expectation]()
			}
			if err := strict(name, value, item, path+"."+key.Value); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Pointer:
		return strict(name, n, t.Elem(), path)
	case t.Kind() == reflect.Struct:
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			return nil
		}
		if n.Kind != yaml.MappingNode {
			return fault.Badly("%s:%d: %s must hold keys (`key: value`)", name, n.Line, where())
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			f, known := field(t, key.Value)
			full := strings.TrimPrefix(path+"."+key.Value, ".")
			if !known {
				return fault.Badly("%s:%d: unknown key `%s`%s", name, key.Line, full, suggest(t, key.Value))
			}
			if seen[key.Value] {
				return fault.Badly("%s:%d: key `%s` stands twice", name, key.Line, full)
			}
			seen[key.Value] = true
			if err := strict(name, value, f.Type, full); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Slice:
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			return nil
		}
		if n.Kind != yaml.SequenceNode {
			return fault.Badly("%s:%d: %s must be a list (`[a, b]`, or lines with `-`)", name, n.Line, where())
		}
		for i, item := range n.Content {
			if err := strict(name, item, t.Elem(), path+"["+strconv.Itoa(i)+"]"); err != nil {
				return err
			}
		}
	default:
		if n.Kind != yaml.ScalarNode {
			return fault.Badly("%s:%d: %s must be a single value", name, n.Line, where())
		}
		if t.Kind() == reflect.Bool && n.Tag != "!!bool" && !strings.Contains(n.Value, "${") {
			return fault.Badly("%s:%d: %s is true or false", name, n.Line, where())
		}
		if t.Kind() == reflect.Int {
			if _, err := strconv.Atoi(n.Value); err != nil && !strings.Contains(n.Value, "${") {
				return fault.Badly("%s:%d: %s is a number", name, n.Line, where())
			}
		}
	}
	return nil
}

func field(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && f.Tag.Get("yaml") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// suggest names the known key nearest to what was written.
func suggest(t reflect.Type, key string) string {
	best, bestDistance := "", 4
	var all []string
	for i := range t.NumField() {
		k := t.Field(i).Tag.Get("yaml")
		if k == "-" || k == "" {
			continue
		}
		all = append(all, k)
		if d := distance(strings.ToLower(key), k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best != "" {
		return "; did you mean `" + best + "`?"
	}
	return "; known here: " + strings.Join(all, ", ")
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			prev, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, prev+cost)
		}
	}
	return row[len(b)]
}

var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

// expand replaces ${VAR} and ${file:PATH} in every scalar value. A missing one is
// an error that names it, never an empty value.
func expand(name string, n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "${") {
		var failed error
		n.Value = reference.ReplaceAllStringFunc(n.Value, func(ref string) string {
			what := ref[2 : len(ref)-1]
			if path, ok := strings.CutPrefix(what, "file:"); ok {
				text, err := os.ReadFile(path)
				if err != nil {
					failed = fault.Badly("%s:%d: cannot read the file of %s", name, n.Line, ref)
				}
				return strings.TrimRight(string(text), "\r\n")
			}
			value, ok := os.LookupEnv(what)
			if !ok {
				failed = fault.Badly("%s:%d: environment variable %s is not set", name, n.Line, what)
			}
			return value
		})
		if failed != nil {
			return failed
		}
		if n.Style == 0 { // plain: let the new text be a number or a bool again
			n.Tag = ""
		}
	}
	for _, child := range n.Content {
		if err := expand(name, child); err != nil {
			return err
		}
	}
	return nil
}
