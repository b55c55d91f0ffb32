package copystream

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"tailrace/internal/change"
)

// Writer writes rows as the Reader reads them. Errors of the stream below it come at
// the latest from End.
type Writer struct {
	w      *bufio.Writer
	binary bool
	begun  bool
	buf    []byte
	values []change.Value
}

// NewWriter writes rows in either format to w.
func NewWriter(w io.Writer, binary bool) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 64<<10), binary: binary}
}

// Row writes a complete row of that many columns, whose values are in the writer's form.
func (w *Writer) Row(row change.Row, columns int) (err error) {
	if w.values, err = row.Values(w.values, columns); err != nil {
		return err
	}
	w.buf = w.buf[:0]
	if w.binary {
		w.buf = binary.BigEndian.AppendUint16(w.header(), uint16(columns))
	}
	for i, v := range w.values {
		switch {
		case v.State == change.Absent, v.State != change.Null && w.binary != (v.State == change.Binary):
			return fmt.Errorf("column %d of a row for a copy stream is in another form", i+1)
		case w.binary && v.State == change.Null:
			w.buf = binary.BigEndian.AppendUint32(w.buf, 1<<32-1)
		case w.binary:
			w.buf = append(binary.BigEndian.AppendUint32(w.buf, uint32(len(v.Data))), v.Data...)
		default:
			if i > 0 {
				w.buf = append(w.buf, '\t')
			}
			if v.State == change.Null {
				w.buf = append(w.buf, `\N`...)
			} else {
				w.buf = escape(w.buf, v.Data)
			}
		}
	}
	if !w.binary {
		w.buf = append(w.buf, '\n')
	}
	_, err = w.w.Write(w.buf)
	return err
}

// header begins the buffer, with the stream's header before the first row.
func (w *Writer) header() []byte {
	if w.begun {
		return w.buf
	}
	w.begun = true
	return append(append(w.buf, signature...), 0, 0, 0, 0, 0, 0, 0, 0)
}

// End ends the stream.
func (w *Writer) End() error {
	if w.binary {
		w.buf = w.buf[:0]
		if _, err := w.w.Write(append(w.header(), 0xff, 0xff)); err != nil {
			return err
		}
	}
	return w.w.Flush()
}

// escape appends a text cell.
func escape(dst, cell []byte) []byte {
	for _, c := range cell {
		switch c {
		case '\\':
			dst = append(dst, '\\', '\\')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
