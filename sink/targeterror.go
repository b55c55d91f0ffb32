package sink

import "tailrace/internal/change"

// TargetError is an operator's error that concerns one target alone: a value that its
// column cannot hold, a constraint, a column or a table that is not there. The others
// can go on without it. Only Apply returns it; nothing of the batch is there.
type TargetError struct {
	Target change.Name
	Err    error
}

func (e *TargetError) Error() string { return e.Err.Error() }
func (e *TargetError) Unwrap() error { return e.Err }
