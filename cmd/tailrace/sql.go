package main

import (
	"fmt"

	"tailrace/internal/fault"
)

// sqlNotes are what the files of `sql` say and what is ignored.
func (e *environment) sqlNotes() []string {
	if w := e.SQL(); w != nil {
		return w.Plan.Notes
	}
	return nil
}

// planSQL prints the files of `sql` in canonical form, and the same as YAML.
func (a *app) planSQL(env *environment) error {
	w := env.SQL()
	if w == nil {
		return fault.Badly("%s names no SQL files: `sql: [pipeline/*.sql]`", env.path)
	}
	yaml, err := w.Plan.YAML()
	if err != nil {
		return err
	}
	for _, f := range w.Files {
		fmt.Fprintf(a.out, "-- %s\n%s\n", f.Name, f)
	}
	fmt.Fprintf(a.out, "# the same as YAML\n%s", yaml)
	for _, n := range w.Plan.Notes {
		fmt.Fprintf(a.errs, "note: %s\n", n)
	}
	return nil
}
