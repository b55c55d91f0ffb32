package flow

import (
	"slices"
	"unicode/utf8"
)

// Expectation is a condition that the rows which a flow writes are to meet (rules
// R106 to R108). One that comes out FALSE or NULL, or cannot be computed, is violated.
type Expectation struct {
	Name      string // up to 128 letters; unique in its flow
	Condition string // in SQL, over what apply_as_deletes may name
	Action    string // on_violation: Warn, Drop or Fail
}

// What becomes of a row that violates an expectation.
const (
	Warn = "warn" // it is written, and counted
	Drop = "drop" // it goes to the quarantine, and is counted
	Fail = "fail" // the pipeline stops
)

// nameMost is how long the name of an expectation may be: the bookkeeping of every
// destination takes it as part of a key.
const nameMost = 128

func validateExpectations(list []Expectation, pattern bool, bad func(string, ...any) error) error {
	for i := range list {
		e := &list[i]
		switch {
		case pattern:
			return bad("expect belongs to a flow of one relation, not to a pattern")
		case e.Name == "" || utf8.RuneCountInString(e.Name) > nameMost:
			return bad("the name of an expectation has 1 to %d letters", nameMost)
		case slices.ContainsFunc(list[:i], func(o Expectation) bool { return o.Name == e.Name }):
			return bad("expectation %s stands twice", e.Name)
		case e.Condition == "":
			return bad("expectation %s needs a condition", e.Name)
		case e.Action != Warn && e.Action != Drop && e.Action != Fail:
			return bad("expectation %s: on_violation is %s, %s or %s, not %q", e.Name, Warn, Drop, Fail, e.Action)
		}
	}
	return nil
}

// Drops reports whether a row may be kept out of the target by an expectation.
func (s *Spec) Drops() bool {
	return slices.ContainsFunc(s.Expect, func(e Expectation) bool { return e.Action == Drop })
}
