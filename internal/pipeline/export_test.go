package pipeline

import "time"

// Quicken makes retries, quiet points and the gathering of a backlog immediate for
// tests in memory.
func Quicken() {
	retryFirst, retryLast = time.Millisecond, 5*time.Millisecond
	quietEvery, gatherMost = 0, 2*time.Millisecond
}
