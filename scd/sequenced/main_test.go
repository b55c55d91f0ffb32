package sequenced_test

import (
	"os"
	"runtime/debug"
	"testing"

	"tailrace/internal/dbtest"
)

// TestMain lets the heap grow: what lives is a few megabytes at any time, and each of the
// hundred thousands of histories is thrown away at once, so that by default half of the
// processor's time would be the collector's. GOGC overrides.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800)
	}
	os.Exit(dbtest.Main(m))
}
