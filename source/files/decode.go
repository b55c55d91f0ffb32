package files

import (
	"context"
	"errors"
	"fmt"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// decoder makes rows of one file's records.
type decoder interface {
	// next appends the row of the next record to s. ordinal is the line that the
	// record begins in, or its row, from 1. io.EOF is the end; a *flaw says what is
	// wrong with the file.
	next(s *slab) (row change.Row, ordinal uint64, err error)
	close()
}

// flaw is what makes a file's content no feed, and where.
type flaw struct {
	line   int64 // or row, from 1; 0: the file as a whole
	row    bool
	offset int64 // of the byte in the (decompressed) content, from 0; -1: not known
	what   string
	remedy string // empty: the usual one
}

const flawRemedy = "put the complete and correct file in its place, or move it where the glob does not match, then start again; nothing of it was kept"

func (f *flaw) Error() string {
	switch {
	case f.line == 0:
		return f.what
	case f.row:
		return fmt.Sprintf("row %d: %s", f.line, f.what)
	case f.offset < 0:
		return fmt.Sprintf("line %d: %s", f.line, f.what)
	}
	return fmt.Sprintf("line %d, byte %d: %s", f.line, f.offset, f.what)
}

// decode opens the decoder of a file's format. l may have no columns: then everything
// is rescued, which is how a sample is read.
func decode(ctx context.Context, o *opened, l *layout) (decoder, error) {
	if l.rel.Format == Parquet {
		return newParquetDecoder(ctx, o, l)
	}
	r, err := o.decompressed()
	if err != nil {
		return nil, err
	}
	in := &input{rescue: newRescue(o.path)}
	if o.size > aheadBlock {
		in.ahead = readAhead(ctx, r)
		r = in.ahead
	}
	in.window = newWindow(r, o.size)
	if err := in.skipBOM(); err != nil {
		in.close()
		return nil, err
	}
	if l.rel.Format == CSV {
		return newCSVDecoder(in, l)
	}
	return newJSONDecoder(in, l), nil
}

// input is what the line formats share.
type input struct {
	*window
	ahead  *ahead // nil: a small file is read as it goes
	rescue rescue
}

func (in *input) close() {
	if in.ahead != nil {
		in.ahead.close()
	}
}

// flawAt makes a flaw of a place in the record that begins at w.start.
func (w *window) flawAt(line int64, at int, what string) *flaw {
	return &flaw{line: line, offset: w.offset + int64(w.start+at), what: what}
}

// more fills the window behind a record that is not complete.
func (w *window) more() error {
	err := w.fill()
	var content unreadableContent
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errRecordTooLong):
		return w.flawAt(w.line, 0, err.Error())
	case errors.As(err, &content):
		return w.flawAt(w.line, len(w.buf)-w.start, err.Error())
	}
	return err
}

// explain makes an operator's refusal of what went wrong with a file.
func explain(rel *relation, f found, err error) error {
	var fl *flaw
	var content unreadableContent
	var moved changing
	var known *fault.Error
	where := "file " + f.path
	if rel.Name != "" { // files of snapshots are of no relation
		where = fmt.Sprintf("relation %s, %s", rel.Name, where)
	}
	switch {
	case errors.As(err, &fl):
		remedy := fl.remedy
		if remedy == "" {
			remedy = flawRemedy
		}
		return fault.Refuse(remedy, "%s: %v", where, fl)
	case errors.As(err, &content):
		return fault.Refuse(flawRemedy, "%s: %v", where, content)
	case errors.As(err, &moved):
		return fault.Refuse(changingRemedy, "%s: %v", where, moved)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &known):
		placed := *known
		placed.Op = where + ": " + placed.Op
		return &placed
	}
	return explain(rel, f, unreadable(err, "read file", f.full))
}
