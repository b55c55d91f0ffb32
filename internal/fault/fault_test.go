package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/fault"
)

// unsent is what the driver says of a connection that it finds closed.
type unsent struct{}

func (unsent) Error() string     { return "conn closed" }
func (unsent) SafeToRetry() bool { return true }

// What passes by itself is tried again; what does not, or what nobody has thought of, is not.
func TestErrorsAreJudged(t *testing.T) {
	state := func(code string) error { return &pgconn.PgError{Code: code} }
	for _, c := range []struct {
		err  error
		want fault.Kind
	}{
		{errors.New("something"), fault.Unknown},
		{context.Canceled, fault.Unknown},
		{context.DeadlineExceeded, fault.Transient},
		{io.ErrUnexpectedEOF, fault.Transient},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, fault.Transient},
		{&os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, fault.Unknown},
		{unsent{}, fault.Transient},
		{state("57P01"), fault.Transient}, // an administrator ended it
		{state("40001"), fault.Transient}, // serialisation
		{state("3D000"), fault.Operator},  // no such database
		{state("?"), fault.Unknown},
		{fault.ErrFenced, fault.Operator},
		{fault.Badly("no such key"), fault.Usage},
		{fault.Corrupted("impossible"), fault.Corrupt},
		{fault.Retry(state("3D000"), "look"), fault.Transient}, // who made it has judged it
	} {
		for _, err := range []error{c.err, fmt.Errorf("follow: %w", c.err)} {
			if got := fault.KindOf(err); got != c.want {
				t.Errorf("%v is of kind %v, want %v", err, got, c.want)
			}
		}
	}
}
