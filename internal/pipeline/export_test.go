package pipeline

import "time"

// Quicken makes retries and quiet points immediate for tests in memory.
func Quicken() { retryFirst, retryLast = time.Millisecond, 5*time.Millisecond; quietEvery = 0 }
