// Package fault names the kinds of failure and is the one place that judges
// them. An error is for three readers: the caller gets a wrapped verb phrase,
// the program a Kind, the operator a Remedy: one sentence, exact statements
// where possible. No error carries row values or secrets.
package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// Kind decides what the program does with a failure.
type Kind uint8

const (
	Unknown   Kind = iota // nobody classified it: stop. The zero value, so that forgetting stops
	Transient             // retry with backoff, re-entering by the start-up path
	Operator              // stop, or park the table; the Remedy says what a person must do
	Corrupt               // what we read cannot be: stop, confirm nothing
	Usage                 // wrong flags or configuration: exit 2
)

func (k Kind) String() string {
	return [...]string{"unknown", "transient", "operator", "corrupt", "usage"}[k]
}

// Error is a failure with its kind and remedy.
type Error struct {
	Kind   Kind
	Op     string // verb phrase: "create slot tailrace_shop"
	Err    error  // cause; may be nil
	Remedy string // what the operator does; empty for transient
}

func (e *Error) Error() string {
	s := e.Op
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		s += "\n  remedy: " + e.Remedy
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Refuse makes an Operator error: what is wrong, and the remedy.
func Refuse(remedy, format string, args ...any) error {
	return &Error{Kind: Operator, Op: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Badly makes a Usage error.
func Badly(format string, args ...any) error {
	return &Error{Kind: Usage, Op: fmt.Sprintf(format, args...)}
}

// Corrupted makes a Corrupt error.
func Corrupted(format string, args ...any) error {
	return &Error{Kind: Corrupt, Op: fmt.Sprintf(format, args...)}
}

// Retry makes a Transient error.
func Retry(err error, format string, args ...any) error {
	return &Error{Kind: Transient, Op: fmt.Sprintf(format, args...), Err: err}
}

// ErrFenced: another process has taken the pipeline over; this one must stop at
// once and write nothing more.
var ErrFenced = errors.New("another process has taken over this pipeline")

// ErrOwned: another live process owns the pipeline.
var ErrOwned = errors.New("another process owns this pipeline")

// sqlState is what PostgreSQL's driver errors offer.
type sqlState interface{ SQLState() string }

// unsent is what PostgreSQL's driver offers where nothing went to the server: the
// connection was found closed, for instance, by a peer that went away a moment ago.
type unsent interface{ SafeToRetry() bool }

// KindOf judges any error: an *Error in its chain decides; then the SQLSTATE
// classes of PostgreSQL's Appendix A; then network failures.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) && e.Kind != Unknown {
		return e.Kind
	}
	if errors.Is(err, ErrFenced) || errors.Is(err, ErrOwned) {
		return Operator
	}
	var s sqlState
	if errors.As(err, &s) {
		return kindOfState(s.SQLState())
	}
	var n net.Error
	var u unsent
	switch {
	case errors.Is(err, context.Canceled):
		return Unknown
	case errors.As(err, &u) && u.SafeToRetry():
		return Transient
	case errors.As(err, &n) && !localErrno(n), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Transient
	}
	return Unknown
}

// localErrno reports an operating system's bare error number, of a file for
// instance: it happens to have the methods of a net.Error. What a network says
// comes inside a *net.OpError.
func localErrno(n net.Error) bool {
	_, bare := n.(syscall.Errno)
	return bare && !n.Timeout()
}

func kindOfState(code string) Kind {
	if len(code) != 5 {
		return Unknown
	}
	switch code {
	case "57P01", "57P02", "57P03", "57P05": // shutdown, crash, starting up, idle session time-out
		return Transient
	case "57014": // query cancelled: a statement time-out of the server
		return Transient
	case "55006": // object in use: the old walsender still holds the slot
		return Transient
	case "55P03": // lock not available
		return Transient
	case "25P03", "25P04": // idle-in-transaction and transaction time-out
		return Transient
	case "3D000": // no such database
		return Operator
	}
	switch code[:2] {
	case "08", "40", "53": // connection, serialisation and deadlock, resources (disk full, too many connections)
		return Transient
	case "28", "42", "55", "3F", "23", "22", "0A": // authorisation, names and rights, state, schema, constraints, data, unsupported
		return Operator
	}
	return Unknown
}

// RemedyOf returns the remedy in err's chain, or "".
func RemedyOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

// Exit codes of the command line; scripts rely on them.
const (
	ExitDone        = 0
	ExitFindings    = 1
	ExitUsage       = 2
	ExitOperator    = 3
	ExitUnavailable = 4
)

// ExitCode maps a command's final error to its exit code. Corrupt and unknown
// failures need a person: 3.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	switch KindOf(err) {
	case Usage:
		return ExitUsage
	case Transient:
		return ExitUnavailable
	default:
		return ExitOperator
	}
}
