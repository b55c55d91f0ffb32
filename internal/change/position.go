package change

import (
	"fmt"
	"strconv"
	"strings"
)

// Position is a place in a source's log. For PostgreSQL it is always the *end*
// LSN of a commit (or a quiet point): the byte after the commit record, which is
// also the first byte of whatever comes next. "Already contained" therefore
// means end <= position. docs/lsn.md lists every boundary case.
//
// Other logs order their positions by (epoch, file, offset); PostgreSQL uses
// offset alone. The zero Position lies before everything and means "none".
type Position struct {
	Epoch  uint32 // changes when a server's numbering starts anew; 0 for PostgreSQL
	File   uint32 // log file number; 0 for PostgreSQL
	Offset uint64 // PostgreSQL: the LSN
}

// LSN makes the position of a PostgreSQL log sequence number.
func LSN(lsn uint64) Position { return Position{Offset: lsn} }

// IsZero reports whether p is "no position".
func (p Position) IsZero() bool { return p == Position{} }

// Compare orders positions of one source: -1, 0 or +1.
func (p Position) Compare(q Position) int {
	switch {
	case p.Epoch != q.Epoch:
		return order(p.Epoch < q.Epoch)
	case p.File != q.File:
		return order(p.File < q.File)
	case p.Offset != q.Offset:
		return order(p.Offset < q.Offset)
	}
	return 0
}

// Since is how many bytes of log lie between q and p, 0 if p is not behind q. Of two
// positions in different files, of which nobody knows the sizes, it is the least that it
// can be: what lies in p's file.
func (p Position) Since(q Position) int64 {
	switch {
	case p.Compare(q) <= 0:
		return 0
	case p.Epoch != q.Epoch || p.File != q.File:
		return int64(p.Offset)
	}
	return int64(p.Offset - q.Offset)
}

// Before reports p < q.
func (p Position) Before(q Position) bool { return p.Compare(q) < 0 }

func order(less bool) int {
	if less {
		return -1
	}
	return 1
}

// String prints a PostgreSQL position as pg_lsn does (16/B374D848) and any
// other as epoch:file:offset in decimal. ParsePosition reads both back.
func (p Position) String() string {
	if p.Epoch == 0 && p.File == 0 {
		return fmt.Sprintf("%X/%X", uint32(p.Offset>>32), uint32(p.Offset))
	}
	return fmt.Sprintf("%d:%d:%d", p.Epoch, p.File, p.Offset)
}

// Number prints the position of a log in files as one decimal number that orders as
// positions do: epoch * 10^30 + file * 10^20 + offset. It has at most 38 digits as long as
// the epoch has at most 8, and needs no more in any database.
func (p Position) Number() string {
	switch {
	case p.Epoch > 0:
		return fmt.Sprintf("%d%010d%020d", p.Epoch, p.File, p.Offset)
	case p.File > 0:
		return fmt.Sprintf("%d%020d", p.File, p.Offset)
	}
	return strconv.FormatUint(p.Offset, 10)
}

// ParsePosition reads what String prints. Errors name the text.
func ParsePosition(s string) (Position, error) {
	if hi, lo, ok := strings.Cut(s, "/"); ok {
		h, err1 := strconv.ParseUint(hi, 16, 32)
		l, err2 := strconv.ParseUint(lo, 16, 32)
		if err1 != nil || err2 != nil {
			return Position{}, fmt.Errorf("position %q is not an LSN like 16/B374D848", s)
		}
		return LSN(h<<32 | l), nil
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return Position{}, fmt.Errorf("position %q is neither an LSN like 16/B374D848 nor epoch:file:offset", s)
	}
	epoch, err1 := strconv.ParseUint(parts[0], 10, 32)
	file, err2 := strconv.ParseUint(parts[1], 10, 32)
	offset, err3 := strconv.ParseUint(parts[2], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return Position{}, fmt.Errorf("position %q is not epoch:file:offset in decimal", s)
	}
	return Position{Epoch: uint32(epoch), File: uint32(file), Offset: offset}, nil
}
