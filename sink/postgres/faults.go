package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/fault"
)

// serverError is what may be shown of a server's error: never its detail, and its
// message only where that cannot hold a row's value.
type serverError struct {
	code string
	text string
}

func (e *serverError) Error() string    { return e.text + " (SQLSTATE " + e.code + ")" }
func (e *serverError) SQLState() string { return e.code }

// SQLSTATEs that are looked for.
const (
	uniqueViolation  = "23505"
	divisionByZero   = "22012" // how a statement of ours says that it met another number of rows than it must
	undefinedTable   = "42P01"
	undefinedSchema  = "3F000"
	notPermitted     = "42501"
	programLimit     = "54000"
	diskFull         = "53100"
	readOnly         = "25006"
	foreignKeyBroken = "23503"
)

// stateOf is the SQLSTATE in err's chain, or "".
func stateOf(err error) string {
	var p *pgconn.PgError
	if errors.As(err, &p) {
		return p.Code
	}
	var s *serverError
	if errors.As(err, &s) {
		return s.code
	}
	return ""
}

// missingBook reports whether err says that bookkeeping has never been made.
func missingBook(err error) bool {
	code := stateOf(err)
	return code == undefinedTable || code == undefinedSchema
}

// ownFault reports whether an error of the server, at a statement about a target,
// concerns that target alone: its rows' values, its constraints, itself. A statement of
// the bookkeeping beside it is told by its schema.
func ownFault(err error) bool {
	var p *pgconn.PgError
	if !errors.As(err, &p) || p.SchemaName == "_tailrace" {
		return false
	}
	switch p.Code {
	case divisionByZero: // ours
		return false
	case programLimit, "P0001", undefinedTable, "42703", "42804", "42846", "42809", notPermitted:
		return true
	}
	return strings.HasPrefix(p.Code, "22") || strings.HasPrefix(p.Code, "23")
}

// explain makes an error of the driver fit to be shown: what was being done, to
// which table, and the remedy where there is one. A lost connection is looked
// into: if the pipeline was taken over meanwhile, that is the error.
func (w *Writer) explain(ctx context.Context, err error, doing string, sh *shape) error {
	if err == nil {
		return nil
	}
	var known *fault.Error
	if errors.As(err, &known) || errors.Is(err, fault.ErrFenced) || errors.Is(err, fault.ErrOwned) {
		return err
	}
	var p *pgconn.PgError
	if errors.As(err, &p) && p.SchemaName == "_tailrace" {
		sh = nil
	}
	if sh != nil {
		doing += " " + sh.label()
	}
	if p == nil {
		switch {
		case errors.Is(err, context.Canceled):
			return fmt.Errorf("%s: %w", doing, context.Canceled)
		case w.deposed():
			return fmt.Errorf("%s: %w", doing, fault.ErrFenced)
		}
		return fault.Retry(err, "%s", doing)
	}
	if strings.HasPrefix(p.Code, "57P") && w.deposed() {
		return fmt.Errorf("%s: %w", doing, fault.ErrFenced)
	}
	safe := &serverError{code: p.Code, text: safeMessage(p)}
	if column := w.columnOf(p, sh); column != "" {
		doing += ", column " + column
	}
	e := &fault.Error{Kind: fault.KindOf(safe), Op: doing, Err: safe, Remedy: remedyFor(p, sh)}
	if e.Kind == fault.Unknown && e.Remedy != "" {
		e.Kind = fault.Operator
	}
	return e
}

// safeMessage is the server's message where it speaks of names, and a phrase of
// ours where it would quote a value (class 22, and whatever code of users raises).
func safeMessage(p *pgconn.PgError) string {
	switch p.Code[:min(2, len(p.Code))] {
	case "08", "0A", "23", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58":
		return p.Message
	case "22":
		switch p.Code {
		case "22001":
			return "a value is too long for its column"
		case "22003":
			return "a number is out of the range of its column's type"
		case "22021":
			return "a text holds bytes that are not UTF-8, or a zero byte"
		case "22P02", "22007", "22008":
			return "a value does not fit its column's type"
		case "22P03":
			return "a binary value does not have the form of its column's type"
		}
		return "a value was not accepted"
	case "P0":
		return "a function or trigger of the destination raised an error"
	}
	return "the destination refused"
}

// columnOf finds the column that a failed COPY speaks of. The context reads
// "COPY table, line 3, column c2: ..." and only a name that is ours to know is
// believed.
func (w *Writer) columnOf(p *pgconn.PgError, sh *shape) string {
	if p.ColumnName != "" {
		return p.ColumnName
	}
	if sh == nil {
		return ""
	}
	_, after, ok := strings.Cut(p.Where, ", column ")
	if !ok {
		return ""
	}
	for i := range sh.columns {
		for _, name := range []string{sh.columns[i].plain, stageColumn(i)} {
			if after == name || strings.HasPrefix(after, name+":") {
				return sh.columns[i].plain
			}
		}
	}
	return ""
}

// remedyFor says what a person can do about an error of the server.
func remedyFor(p *pgconn.PgError, sh *shape) string {
	table := "the table"
	if sh != nil {
		table = sh.name
	}
	switch p.Code {
	case notPermitted:
		return "grant what the message names to the destination's user (tailrace check lists the statements)"
	case uniqueViolation:
		if sh != nil {
			return fmt.Sprintf("the constraint %q of %s does not hold for the source's rows (key columns: %s); drop it or mend the rows that are in its way", p.ConstraintName, table, sh.keyNames())
		}
	case foreignKeyBroken:
		return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s: the source's own foreign keys have already been checked", table, quote(p.ConstraintName))
	case programLimit:
		return "a row or value is beyond PostgreSQL's limit of 1 GB; leave the column out of the flow"
	case diskFull:
		return "free space on the destination's disk"
	case readOnly:
		return "give the address of a server that can be written to"
	case "22P02":
		if sh != nil {
			return "if the column is an enum, add the source's new label with ALTER TYPE ... ADD VALUE; otherwise compare the column's type with the source's"
		}
	case "P0001":
		return fmt.Sprintf("mend or drop the trigger of %s that raises it", table)
	case "23502":
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL: the source has rows with NULL there", table, quote(p.ColumnName))
	case "23514":
		return fmt.Sprintf("the constraint of %s does not hold for the source's rows: drop it", table)
	case undefinedTable:
		if sh != nil {
			return "run again: the table is made anew; tailrace resync fills it"
		}
	}
	return ""
}

// deposed asks, over a connection of its own, whether another process has taken
// the pipeline over. No answer within two seconds counts as no.
func (w *Writer) deposed() bool {
	w.mu.Lock()
	epoch := w.epoch
	w.mu.Unlock()
	if epoch == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, w.named())
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	s := &session{conn: conn}
	rows, err := s.query(ctx, epochSQL, w.cfg.Pipeline)
	return err == nil && len(rows) == 1 && num(rows[0][0]) != epoch
}
