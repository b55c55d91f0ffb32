// Package sinktest is the contract of sink.Writer in executable form. Every
// destination runs it on its real server:
//
//	func TestContract(t *testing.T) { sinktest.Run(t, openHarness) }
//
// Each test gets a destination of its own. What a test expects comes from the
// documentation of sink.Writer, sink.Parts, sink.Resyncs, sink.Memory, scd.Round and scd.Step alone; model.go
// restates those rules row by row, and the property tests compare a destination with
// it after random work. Sequenced targets are driven through their real lane, and
// compared with the oracle of internal/sim. Random tests print their seed; TAILRACE_TEST_SEED repeats one.
package sinktest

import (
	"testing"

	"tailrace/internal/change"
	"tailrace/sink"
)

// Harness is one fresh destination: no bookkeeping of ours, an empty schema for
// targets. Everything it opens ends with the test that it was made for.
type Harness interface {
	// Open gives another Writer of the same pipeline on this destination. The suite
	// closes it; closing twice must be harmless.
	Open(t testing.TB) sink.Writer

	// Schema is where the suite puts its targets. It exists.
	Schema() string

	// Exec runs a statement on the destination, outside of any Writer's transaction.
	Exec(t testing.TB, sql string)

	// Query runs a SELECT and gives every value as text, nil for NULL.
	Query(t testing.TB, sql string) [][]*string

	// Micros is an SQL expression for the microseconds since the Unix epoch, as an
	// integer, of a timestamp with time zone; NULL stays NULL.
	Micros(expr string) string

	// Expire makes the present owner's heartbeat look a minute old.
	Expire(t testing.TB)

	// Kill ends a Writer's sessions as the death of its process would: at once, and
	// with nothing put in order. Only called where Has().Depose.
	Kill(t testing.TB, w sink.Writer)

	// Has says which optional things hold here.
	Has() Features
}

// Features are what destinations may differ in.
type Features struct {
	// Depose: a stale owner can be deposed while its process still runs and holds
	// its Writer open. False where the destination admits one process alone.
	Depose bool
	// Keys: the destination notices a second row of a key by itself.
	Keys bool
	// CaseTwins: "id" and "ID" can be two columns of one table.
	CaseTwins bool
	// Secondary: CREATE UNIQUE INDEX on columns beside the key is enforced.
	Secondary bool
	// Refuses says which values of the list have no place in the column made for
	// their type and are refused by name; nil: none.
	Refuses func(typ change.Type, text string) bool
	// LastInstant is the last start or end of a version by commit time, in microseconds
	// since the Unix epoch; 0: it lies beyond the year 9999.
	LastInstant int64
	// SourceText: a stored value printed as text is PostgreSQL's text for the value.
	SourceText bool
}

// Run tests a destination against the contract. open is called once for each
// test; it fails the test if it cannot give a destination.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	has := open(t).Has()
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"bookkeeping", bookkeepingTests},
		{"ownership", ownershipTests},
		{"asking", askingTests},
		{"runs", runTests},
		{"plan", planTests},
		{"load", loadTests},
		{"parts", partsTests},
		{"resync", resyncTests},
		{"type 1", type1Tests},
		{"type 2", type2Tests},
		{"pieces", pieceTests},
		{"values", valueTests},
		{"inspection", inspectionTests},
		{"model", modelTests},
		{"memory", memoryTests},
		{"stages", stageTests},
		{"noted", notedTests},
		{"upkeep", upkeepTests},
		{"violations", violationTests},
		{"sequenced", sequencedTests},
		{"histories", historyTests},
		{"bitemporal", bitemporalTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				if test.needs == nil || test.needs(has) {
					t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
				}
			}
		})
	}
	// The same work on targets with a change feed, which is played back wherever their
	// rows are looked at.
	t.Run("with a change feed", func(t *testing.T) {
		for _, group := range [][]test{feedTests, pieceTests, modelTests, resyncTests, sequencedTests, historyTests} {
			for _, test := range group {
				if test.needs == nil || test.needs(has) {
					t.Run(test.name, func(t *testing.T) { test.run(t, fed{open(t)}) })
				}
			}
		}
	})
}

// test is one sentence of the contract.
type test struct {
	name  string
	needs func(Features) bool // nil: always
	run   func(t *testing.T, h Harness)
}

// inBothForms runs a test with text and with binary values.
func inBothForms(run func(t *testing.T, h Harness, f form)) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		for _, f := range []form{text, binary} {
			t.Run(f.String(), func(t *testing.T) { run(t, h, f) })
		}
	}
}
