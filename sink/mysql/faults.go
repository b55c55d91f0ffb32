package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"tailrace/internal/fault"
)

// Numbers of the servers' errors that are looked for (MySQL's error reference; MariaDB
// has the same up to 1900).
const (
	erDiskWrite        = 3    // error writing file
	erTooManySessions  = 1040 //
	erNoDatabase       = 1049 //
	erDenied           = 1044 // to the database
	erDeniedSignOn     = 1045 //
	erBadColumn        = 1054 //
	erTableThere       = 1050 //
	erShutdown         = 1053 //
	erDuplicate        = 1062 //
	erKeyTooLong       = 1071 //
	erNoSuchThread     = 1094 //
	erRecordFull       = 1114 // the table is full: so is the disk
	erRowTooLong       = 1118 //
	erDeniedTable      = 1142 //
	erDeniedColumn     = 1143 //
	erNoTable          = 1146 //
	erPacketTooLarge   = 1153 //
	erLockWait         = 1205 //
	erDeadlock         = 1213 //
	erDeniedGlobal     = 1227 //
	erOptionPrevents   = 1290 // --read-only
	erDiskFull         = 1021 //
	erNoReference      = 1216 //
	erParentRow        = 1451 //
	erChildRow         = 1452 //
	erQueryInterrupted = 1317 //
	erDeniedRoutine    = 1370 //
	erDataTooLong      = 1406 //
	erSignal           = 1644 // raised by a trigger
	erReadOnly         = 1792 //
	erReadOnlyMode     = 1836 //
	erKilled           = 1927 // MariaDB: the connection was killed
	erStatementTimeout = 1969 // MariaDB
	erCheckMySQL       = 3819 //
	erCheckMariaDB     = 4025 //
)

// numberOf is the server's number in err's chain, or 0.
func numberOf(err error) int {
	var e *driver.MySQLError
	if errors.As(err, &e) {
		return int(e.Number)
	}
	var s *serverError
	if errors.As(err, &s) {
		return s.number
	}
	return 0
}

// serverError is what may be shown of a server's error: its number and a phrase of ours,
// since its message quotes values.
type serverError struct {
	number int
	text   string
}

func (e *serverError) Error() string { return fmt.Sprintf("%s (error %d)", e.text, e.number) }

// missingBook reports whether err says that bookkeeping has never been made.
func missingBook(err error) bool {
	n := numberOf(err)
	return n == erNoTable || n == erNoDatabase
}

func notPermitted(err error) bool {
	switch numberOf(err) {
	case erDenied, erDeniedTable, erDeniedColumn, erDeniedGlobal, erDeniedRoutine:
		return true
	}
	return false
}

// lostConnection reports whether err says that the session has ended.
func lostConnection(err error) bool {
	switch numberOf(err) {
	case 0:
		return true
	case erKilled, erShutdown, erQueryInterrupted:
		return true
	}
	return false
}

// ownFault reports whether an error of the server, at a statement about a target,
// concerns that target alone: its rows' values, its constraints, itself.
func ownFault(err error) bool {
	n := numberOf(err)
	k, _ := judge(n)
	return n != 0 && k == fault.Operator && n != erOptionPrevents && n != erReadOnly && n != erReadOnlyMode && n != erDeniedSignOn && n != erDeniedGlobal
}

// judge says of what kind a server's error is, and what it means, without a value.
func judge(number int) (fault.Kind, string) {
	switch number {
	case erLockWait:
		return fault.Transient, "a lock was waited for in vain"
	case erDeadlock:
		return fault.Transient, "the server has chosen the transaction as the victim of a deadlock"
	case erTooManySessions, 1203, 1226:
		return fault.Transient, "the server admits no more sessions"
	case erShutdown:
		return fault.Transient, "the server is shutting down"
	case erKilled, erQueryInterrupted, erStatementTimeout, 3024:
		return fault.Transient, "the statement or its session was ended"
	case erDiskFull, erDiskWrite, erRecordFull, 1030, 1026:
		return fault.Transient, "the server could not write: its disk, or its table space, is full"
	case erOptionPrevents, erReadOnly, erReadOnlyMode:
		return fault.Operator, "the server, or the session's user, may only read"
	case erDenied, erDeniedTable, erDeniedColumn, erDeniedGlobal, erDeniedRoutine:
		return fault.Operator, "the user lacks a right"
	case erDeniedSignOn, 1698, 1129, 1130, 3118, 1820, 1862:
		return fault.Operator, "the server does not let the user in"
	case erNoDatabase:
		return fault.Operator, "the database is not there"
	case erNoTable, 1051:
		return fault.Operator, "the table is not there"
	case erBadColumn, 1072:
		return fault.Operator, "a column is not there"
	case erTableThere:
		return fault.Operator, "a table of that name is there"
	case erDuplicate, 1586, 1169:
		return fault.Operator, "a unique index has the value already"
	case erKeyTooLong:
		return fault.Operator, "the key is longer than an index entry may be"
	case erRowTooLong, 1074, 1117, 139:
		return fault.Operator, "a row of the table is longer than the server admits"
	case erPacketTooLarge, 1301:
		return fault.Operator, "a statement is larger than the server's max_allowed_packet"
	case erNoReference, 1217, erParentRow, erChildRow:
		return fault.Operator, "a foreign key does not hold"
	case erDataTooLong, 1162:
		return fault.Operator, "a value is too long for its column"
	case 1264, 1690, 1441:
		return fault.Operator, "a number or an instant is out of the range of its column's type"
	case 1265, 1292, 1366, 1367, 1411, 1525, 3140, 1300:
		return fault.Operator, "a value does not fit its column's type"
	case 1048, 1263, 1364:
		return fault.Operator, "a column that must have a value got none"
	case erSignal, 1643:
		return fault.Operator, "a trigger of the destination raised an error"
	case erCheckMySQL, erCheckMariaDB:
		return fault.Operator, "a check constraint does not hold"
	case 1665, 1663:
		return fault.Operator, "the server's binlog_format is STATEMENT, under which it refuses to write"
	case 1105, 1785, 1031:
		return fault.Operator, "the table's engine refuses"
	}
	return fault.Unknown, "the server refused"
}

// jobError is a failure with what was being done. explain makes it presentable.
type jobError struct {
	doing string
	sh    *shape // nil: not about a target
	err   error
}

func (e *jobError) Error() string { return e.doing + ": " + e.err.Error() }
func (e *jobError) Unwrap() error { return e.err }

// explain makes an error of the driver fit to be shown: what was being done, to which
// table, and the remedy where there is one. A lost connection is looked into: if the
// pipeline was taken over meanwhile, that is the error.
func (w *Writer) explain(err error, doing string, sh *shape) error {
	if err == nil {
		return nil
	}
	var known *fault.Error
	if errors.As(err, &known) || errors.Is(err, fault.ErrFenced) || errors.Is(err, fault.ErrOwned) {
		return err
	}
	if sh != nil {
		doing += " " + sh.label()
	}
	var e *driver.MySQLError
	isServer := errors.As(err, &e)
	if lostConnection(err) && w.deposed() {
		return fmt.Errorf("%s: %w", doing, fault.ErrFenced)
	}
	if !isServer {
		switch {
		case errors.Is(err, context.Canceled):
			return fmt.Errorf("%s: %w", doing, context.Canceled)
		case errors.Is(err, driver.ErrInvalidConn), errors.Is(err, sqldriver.ErrBadConn):
			return fault.Retry(errors.New("the connection was lost"), "%s", doing)
		}
		return fault.Retry(err, "%s", doing)
	}
	kind, text := judge(int(e.Number))
	if name := indexOf(e.Message); e.Number == erDuplicate && name != "" {
		text = fmt.Sprintf("the unique index %s has a row's value already", name)
	}
	if column := columnOf(e.Message, sh); column != "" {
		doing += ", column " + column
	}
	out := &fault.Error{Kind: kind, Op: doing, Err: &serverError{int(e.Number), text}, Remedy: w.remedyFor(e, sh)}
	if out.Kind == fault.Unknown && out.Remedy != "" {
		out.Kind = fault.Operator
	}
	return out
}

// indexOf finds the name of an index at the end of "Duplicate entry '...' for key 'name'";
// MySQL puts the table's name in front of it.
func indexOf(message string) string {
	at := strings.LastIndex(message, " for key '")
	if at < 0 {
		return ""
	}
	name := strings.TrimSuffix(message[at+len(" for key '"):], "'")
	if _, after, ok := strings.Cut(name, "."); ok {
		return after
	}
	return name
}

// columnOf finds the column that a message speaks of; only a name that is ours to know
// is believed.
func columnOf(message string, sh *shape) string {
	if sh == nil {
		return ""
	}
	for i := range sh.columns {
		name := sh.columns[i].plain
		for _, q := range []string{"olumn '" + name + "'", ".`" + name + "` at row", "Field '" + name + "' "} {
			if strings.Contains(message, q) {
				return name
			}
		}
	}
	return ""
}

// remedyFor says what a person can do about an error of the server.
func (w *Writer) remedyFor(e *driver.MySQLError, sh *shape) string {
	table, database := "the table", w.cfg.Schema
	if sh != nil {
		table, database = sh.name, w.qualified(sh.target.Name).Schema
	}
	switch e.Number {
	case erDenied, erDeniedTable, erDeniedColumn, erDeniedGlobal, erDeniedRoutine:
		user := w.account()
		if user == "" {
			user = userOf(e.Message) // with the client's host, not the account's
		}
		if user == "" {
			user = "the destination's user"
		}
		return fmt.Sprintf("GRANT ALL PRIVILEGES ON `_tailrace`.* TO %s; GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON %s.* TO %[1]s;", user, quote(database))
	case erDeniedSignOn:
		return "mend user, password or host in destination.dsn, or create the user: CREATE USER ... IDENTIFIED BY ...;"
	case erDuplicate:
		if sh != nil {
			return fmt.Sprintf("the unique index %s of %s does not hold for the source's rows (key columns: %s); drop it or mend the rows that are in its way", indexOf(e.Message), table, sh.keyNames())
		}
	case erParentRow, erChildRow, erNoReference, 1217:
		return fmt.Sprintf("ALTER TABLE %s DROP FOREIGN KEY ...; the source's own foreign keys have already been checked", table)
	case erDiskFull, erDiskWrite, erRecordFull, 1030, 1026:
		return "free space on the destination's disk"
	case erOptionPrevents, erReadOnly, erReadOnlyMode:
		return "give the address of a server that can be written to"
	case erPacketTooLarge, 1301:
		return "SET GLOBAL max_allowed_packet = 1073741824; -- and in the server's configuration file; or leave the column out of the flow"
	case erSignal, 1643:
		return fmt.Sprintf("mend or drop the trigger of %s that raises it", table)
	case 1048, 1263, 1364:
		return fmt.Sprintf("make the column of %s admit NULL: the source has rows without a value there", table)
	case erCheckMySQL, erCheckMariaDB:
		return fmt.Sprintf("a check of %s does not hold for the source's rows: drop it", table)
	case erNoTable:
		if sh != nil {
			return "run again: the table is made anew; tailrace resync fills it"
		}
	case erKeyTooLong, erRowTooLong, 1074, 1117:
		return "leave columns out with except_column_list, or make the table yourself with shorter types"
	case 1665, 1663:
		return "SET GLOBAL binlog_format = 'ROW'; -- and in the server's configuration file"
	}
	return ""
}

// userOf finds 'user'@'host' in a message, as a statement has it.
func userOf(message string) string {
	at := strings.Index(message, "'@'")
	if at < 0 {
		return ""
	}
	from := strings.LastIndexByte(message[:at], '\'')
	to := strings.IndexByte(message[at+3:], '\'')
	if from < 0 || to < 0 {
		return ""
	}
	return message[from : at+3+to+1]
}

// deposed asks, over a connection of its own, whether another process has taken the
// pipeline over. No answer within two seconds counts as no.
func (w *Writer) deposed() bool {
	w.mu.Lock()
	epoch := w.epoch
	w.mu.Unlock()
	if epoch == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	connector, err := driver.NewConnector(w.conf)
	if err != nil {
		return false
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return false
	}
	s := &session{conn: conn}
	defer s.close()
	rows, err := s.query(ctx, strings.ReplaceAll(epochSQL, "?", "'"+strings.NewReplacer(`\`, `\\`, "'", "''").Replace(w.cfg.Pipeline)+"'"))
	return err == nil && len(rows) == 1 && num(rows[0][0]) != epoch
}

// tooLarge is what the server would say of a statement that is not sent.
var tooLarge = &driver.MySQLError{Number: erPacketTooLarge}
