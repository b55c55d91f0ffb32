package expr

import (
	"errors"
	"fmt"

	"tailrace/internal/fault"
)

// Reasons why a value cannot be computed. They exist once, so that TRY_CAST
// costs nothing, and none holds a value.
var (
	errDivision     = errors.New("division by zero")
	errIntRange     = errors.New("the number is out of the integer's range")
	errNumericRange = errors.New("the number is out of the numeric's range")
	errFloatRange   = errors.New("the number is out of the float's range")
	errTimeRange    = errors.New("the time is out of range")
	errInfinite     = errors.New("the time is infinite")
	errTooLong      = errors.New("the resulting text is too long")
	errNegativeRoot = errors.New("the square root of a negative number")
	errPower        = errors.New("the power is not defined for these numbers")
	errPart         = errors.New("the part number is 0; parts count from 1, or from -1 backwards")
	errEscapeEnd    = errors.New("the pattern ends with the escape character")
	errEscapeLength = errors.New("the escape is not one character")
	errNotUTF8      = errors.New("the bytes are not UTF-8 text")
	errNUL          = errors.New("the text would hold a NUL character")
	errNotBool      = errors.New("the text is no boolean")
	errNotInt       = errors.New("the text is no integer")
	errNotNumeric   = errors.New("the text is no number")
	errNotDate      = errors.New("the text is no date like 2026-01-31")
	errNotTimestamp = errors.New("the text is no timestamp like 2026-01-31 12:00:00")
	errOffset       = errors.New("a timestamp without time zone cannot have an offset")
	errNotTime      = errors.New("the text is no time of day like 12:00:00")
	errNotUUID      = errors.New("the text is no uuid")
	errNotInterval  = errors.New("the text is no interval like '1 day 2 hours'")
	errIntervalUnit = errors.New("units are year, quarter, month, week, day, hour, minute, second, millisecond, microsecond")
	errIntervalPart = errors.New("only hours and what is shorter can have decimals")
	errPattern      = errors.New("the text does not match the pattern")
)

// site is where an expression can fail: what an error says beside its reason.
type site struct {
	what         string // "CAST to integer", "to_date", "/"
	line, column int
}

// wrap makes the error of an evaluation.
func (s site) wrap(reason error) error {
	return &fault.Error{
		Kind:   fault.Operator,
		Op:     fmt.Sprintf("evaluate %s at line %d, column %d of the expression", s.what, s.line, s.column),
		Err:    reason,
		Remedy: "mend the row at its source, or guard the expression with TRY_CAST or CASE",
	}
}
