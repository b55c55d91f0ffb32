package config_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

const small = "pipeline: p\ndestination: {dsn: x.duckdb}\nflows: [{source: public.*}]\n"

func TestExampleHoldsEveryKeyWithItsDefault(t *testing.T) {
	t.Setenv("SOURCE_DSN", "postgres://localhost/shop")
	text, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("config.example.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Pipeline, want.Source.DSN, want.Destination.DSN, want.Flows = c.Pipeline, c.Source.DSN, c.Destination.DSN, c.Flows
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("the example's values are not the defaults:\n%+v\n%+v", *c, want)
	}
	var missing func(tp reflect.Type)
	missing = func(tp reflect.Type) {
		for i := range tp.NumField() {
			f := tp.Field(i)
			if key := f.Tag.Get("yaml"); !strings.Contains(string(text), key) {
				t.Errorf("key %s is not in the example", key)
			}
			if f.Type.Kind() == reflect.Struct {
				missing(f.Type)
			}
			if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
				missing(f.Type.Elem())
			}
		}
	}
	missing(reflect.TypeFor[config.Config]())
}

func TestWrongFilesAreNamedWithLineAndSuggestion(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "is empty"},
		{"pipeline: p\nsorce: {}\n", "f.yaml:2: unknown key `sorce`; did you mean `source`?"},
		{"pipeline: p\nsource:\n  kind: postgres\n  dns: x\n", "f.yaml:4: unknown key `source.dns`; did you mean `dsn`?"},
		{"pipeline: p\nflows:\n- source: a\n  stored_as: 2\n", "f.yaml:4: unknown key `flows[0].stored_as`"},
		{"pipeline: p\npipeline: q\n", "stands twice"},
		{"pipeline: p\nflows: public.*\n", "f.yaml:2: flows must be a list"},
		{"pipeline: [a]\n", "must be a single value"},
		{small + "hydrate: {workers: many}\n", "hydrate.workers is a number"},
		{small + "queue_bytes: lots\n", "queue_bytes"},
		{"pipeline: p\nflows:\n- source: a\n  stored_as_scd_type: 3\n", "f.yaml:4: flows[0].stored_as_scd_type is 1, 2 or bitemporal"},
		{small + "drain_max: soon\n", "drain_max"},
		{small + "source: {dsn: \"${NOT_SET_ANYWHERE}\"}\n", "f.yaml:4: environment variable NOT_SET_ANYWHERE is not set"},
		{small + "source: {dsn: \"${file:/nowhere}\"}\n", "cannot read the file"},
		{small + "source: {kind: oracle}\n", "source.kind"},
		{"destination: {dsn: x}\nflows: [{source: a}]\n", "`pipeline` is missing"},
		{"pipeline: p\ndestination: {dsn: x}\n", "`flows` is empty"},
		{"pipeline: p\nflows: [{source: a}]\n", "`destination.dsn` is missing"},
		{small + "log_level: loud\n", "log_level"},
		{"pipeline: p\ndestination: {dsn: x}\nrelations: {r: {path: a, format: csv}}\nflows: [{source: r, source_kind: table, keys: [k], sequence_by: n}]\n", "a relation of files holds events"},
		{"pipeline: p\ndestination: {dsn: x}\nrelations: {r: {path: a, format: csv}}\nflows: [{source: r, once: true, keys: [k], sequence_by: n}, {source: r, target: t, keys: [k], sequence_by: n}]\n", "a relation of its own"},
		{"a: [\n", "line"},
	} {
		_, err := config.Parse("f.yaml", []byte(c.text))
		if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q\n  want an error with %q\n  got  %v", c.text, c.want, err)
		}
	}
}

func TestTypesOfTargetsAreNumbersOrTexts(t *testing.T) {
	t.Setenv("TYPE", "2")
	for text, want := range map[string]int{"1": 1, "2": 2, `"1"`: 1, `"2"`: 2, `"${TYPE}"`: 2,
		"bitemporal, system_sequence_by: known": flow.Bitemporal, "BITEMPORAL, system_sequence_by: [known]": flow.Bitemporal} {
		c, err := config.Parse("f.yaml", []byte("pipeline: p\nsource: {dsn: x}\ndestination: {dsn: x}\nflows: [{source: public.a, keys: [k], sequence_by: n, stored_as_scd_type: "+text+"}]\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if s := c.Specs()[0]; s.SCDType != want || (want == flow.Bitemporal) != (len(s.Sequenced.SystemSequenceBy) == 1) {
			t.Errorf("%s: %+v", text, s)
		}
	}
}

func TestValuesKeepTheirCaseAndVariablesOverride(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("s3cr3t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TAILRACE_SOURCE_DSN", "postgres://from-env/")
	t.Setenv("TAILRACE_HYDRATE_WORKERS", "9")
	t.Setenv("TAILRACE_QUEUE_BYTES", "64MiB")
	t.Setenv("WORK", "7s")
	c, err := config.Parse("f.yaml", []byte(`
pipeline: Shop-1
source: {dsn: "postgres://file/"}
destination: {kind: postgres, dsn: "postgres://u:${file:`+dir+`/pw}@h/d", schema: MySchema}
batch: {max_bytes: 1048576}
drain_max: ${WORK}
flows: [{source: "public.\"Users\"", keys: [userId, ID], target: UserHist, stored_as_scd_type: 2, column_list: [userId, ID, City]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Source.DSN.Reveal() != "postgres://from-env/" || c.Hydrate.Workers != 9 || c.QueueBytes != 64<<20 || c.Batch.MaxBytes != 1<<20 || c.DrainMax != 7*time.Second {
		t.Errorf("%+v", c)
	}
	if c.Destination.DSN.Reveal() != "postgres://u:s3cr3t@h/d" || c.Pipeline != "Shop-1" || c.Destination.Schema != "MySchema" {
		t.Errorf("%+v", c)
	}
	if f := c.Specs()[0]; f.Keys[0] != "userId" || f.ColumnList[2] != "City" || f.Target != "UserHist" || f.SCDType != 2 {
		t.Errorf("%+v", f)
	}
}

// A flow without a schema means a relation of files if there is one of that name, else a
// table.
func TestFlowsNameFilesOrTables(t *testing.T) {
	c, err := config.Parse("f.yaml", []byte(`
pipeline: p
source: {kind: postgres}
destination: {dsn: x}
relations: {users: {path: a, format: csv}, a.b: {path: b, format: csv}}
flows:
  - {source: users, keys: [k], sequence_by: n}
  - {source: public.users, target: other}
  - {source: orders}
  - {source: '"a.b"', keys: [k], sequence_by: n}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []change.Name{{Table: "users"}, {Schema: "public", Table: "users"}, {Schema: "public", Table: "orders"}, {Table: "a.b"}} {
		spec := c.Specs()[i]
		for _, n := range []change.Name{{Table: "users"}, {Schema: "public", Table: "users"}, {Schema: "public", Table: "orders"}, {Table: "a.b"}} {
			if got := spec.Matches(n); got != (n == want) {
				t.Errorf("flow %s takes %s: %v", spec.Source, n, got)
			}
		}
		if files := want.Schema == ""; spec.Files != files || spec.Sequenced.Feed != files {
			t.Errorf("flow %s: files %v, feed %v", spec.Source, spec.Files, spec.Sequenced.Feed)
		}
	}
}

func TestSecretsNeverPrint(t *testing.T) {
	c := config.Default()
	c.Source.DSN = "postgres://u:s3cr3t-p@ss@h/d"
	js, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "dsn", c.Source.DSN, "config", c)
	all := fmt.Sprintf("%v %+v %#v %s %q", c, c, c, c.Source.DSN, c.Source.DSN) + string(js) + log.String()
	if strings.Contains(all, "s3cr3t") {
		t.Fatalf("a secret was printed: %s", all)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]config.Bytes{"0": 0, "17": 17, "4KiB": 4096, "16 MiB": 16 << 20, "2GB": 2 << 30, "8B": 8} {
		var b config.Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%q: %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "-1", "1TiB5", "MiB", "99999999999999999999"} {
		var b config.Bytes
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was accepted as %d", text, b)
		}
	}
}

// A publication of somebody else's is read without streaming unless it is asked for.
func TestWhenOpenTransactionsAreStreamed(t *testing.T) {
	for _, c := range []struct {
		streaming, publication string
		want                   bool
	}{
		{"auto", "", true}, {"auto", "theirs", false}, {"on", "theirs", true}, {"off", "", false},
	} {
		s := config.Source{Streaming: c.streaming, Publication: c.publication}
		if s.Streams() != c.want {
			t.Errorf("%s with publication %q: %v", c.streaming, c.publication, !c.want)
		}
	}
}

// YAML takes null for no value; the choice of this name is meant.
func TestZeroDatesMayBeNull(t *testing.T) {
	for written, want := range map[string]string{"null": "null", "'null'": "null", "text": "text", "error": "error"} {
		c, err := config.Parse("f", []byte("pipeline: p\nsource: {kind: mysql, dsn: 'mysql://u@h/d', zero_dates: "+written+"}\ndestination: {kind: duckdb, dsn: x}\nflows: [{source: d.t}]"))
		if err != nil || c.Source.ZeroDates != want {
			t.Errorf("%s: %v, %+v", written, err, c)
		}
	}
}
