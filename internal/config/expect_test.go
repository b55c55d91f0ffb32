package config_test

import (
	"reflect"
	"strings"
	"testing"

	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

// Names of expectations keep their case and order.
func TestExpectationsKeepTheirNamesAndOrder(t *testing.T) {
	c, err := config.Parse("f.yaml", []byte(`
pipeline: p
destination: {dsn: x}
flows:
  - {source: a}
  - source: b
    expect:
      Zip: {condition: "length(zip) = 5"}
      "an id": {condition: "id IS NOT NULL", on_violation: fail}
      amount: {condition: "amount > 0", on_violation: drop}
    target: other
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []flow.Expectation{
		{Name: "Zip", Condition: "length(zip) = 5", Action: flow.Warn},
		{Name: "an id", Condition: "id IS NOT NULL", Action: flow.Fail},
		{Name: "amount", Condition: "amount > 0", Action: flow.Drop},
	}
	specs := c.Specs()
	if !reflect.DeepEqual(specs[1].Expect, want) || specs[0].Expect != nil || specs[1].Target != "other" || !specs[1].Drops() || specs[0].Drops() {
		t.Errorf("%+v", specs)
	}
}

func TestWrongExpectationsAreNamed(t *testing.T) {
	const head = "pipeline: p\ndestination: {dsn: x}\nflows:\n- source: %s\n  expect: "
	for _, c := range []struct{ source, text, want string }{
		{"a", "{x: {condition: \"a > 0\", on_violation: skip}}", `on_violation is warn, drop or fail, not "skip"`},
		{"a", "{x: {on_violation: drop}}", "expectation x needs a condition"},
		{"a", "{x: {condition: \"a > 0\", on_violaton: drop}}", "did you mean `on_violation`?"},
		{"a", "{x: {condition: a}, x: {condition: b}}", "name `x` stands twice"},
		{"a", "[{condition: a}]", "must hold names"},
		{"a", "{\"\": {condition: a}}", "1 to 128 letters"},
		{"a", "{" + strings.Repeat("x", 129) + ": {condition: a}}", "1 to 128 letters"},
		{"\"s.*\"", "{x: {condition: a}}", "not to a pattern"},
	} {
		_, err := config.Parse("f.yaml", []byte(strings.Replace(head, "%s", c.source, 1)+c.text+"\n"))
		if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n  want an error with %q\n  got  %v", c.text, c.want, err)
		}
	}
}
