package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"

	"tailrace/internal/change"
)

// parquetBatch is how many rows are read at once: they hold on to pages until the next
// read, so not more than make the calls cheap.
const parquetBatch = 128

// parquetDecoder reads Parquet. Columns of the file are matched by name; one whose
// type is the column's is printed as it is, any other is made text and then read like
// a CSV field. Groups, lists and maps become JSON.
type parquetDecoder struct {
	ctx    context.Context
	layout *layout
	file   *parquet.File
	fields []*node // the file's columns
	source []int   // column -> field, or -1
	extra  []int   // fields that are no column
	rescue rescue

	group   int // row groups begun
	rows    parquet.Rows
	batch   []parquet.Row
	at, n   int   // in batch
	after   error // what the reader said behind batch
	row     uint64
	leaves  [][]parquet.Value // of the row being read
	scratch []byte
}

func newParquetDecoder(ctx context.Context, o *opened, l *layout) (d *parquetDecoder, err error) {
	if ending, _ := compressionOf(o.path); ending != "" {
		return nil, unreadableContent("a Parquet file is not compressed as a whole (" + ending + "); its pages are")
	}
	defer guard(&err, 0)
	if err := checkFooter(o.file, o.size); err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(o.file, o.size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, damaged(err, 0)
	}
	d = &parquetDecoder{ctx: ctx, layout: l, file: file, rescue: newRescue(o.path), batch: make([]parquet.Row, parquetBatch)}
	for _, c := range file.Root().Columns() {
		d.fields = append(d.fields, newNode(c, 0, 0))
	}
	leaves := 0
	for _, f := range d.fields {
		leaves = max(leaves, f.last)
	}
	d.leaves = make([][]parquet.Value, leaves)
	d.match()
	return d, nil
}

// checkFooter sees that the file ends as a complete one does, before anything is
// allocated by what it says.
func checkFooter(r io.ReaderAt, size int64) error {
	const least = 12 // magic, length of the footer, magic
	if size < least {
		return unreadableContent(fmt.Sprintf("%d bytes are no Parquet file: it is cut off, or still being written", size))
	}
	var head [4]byte
	var tail [8]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return err
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil {
		return err
	}
	if string(head[:]) == "PARE" || string(tail[4:]) == "PARE" {
		return unreadableContent("the Parquet file is encrypted")
	}
	if string(head[:]) != "PAR1" {
		return unreadableContent("the file does not begin as Parquet does (PAR1)")
	}
	if string(tail[4:]) != "PAR1" || int64(binary.LittleEndian.Uint32(tail[:])) > size-least {
		return unreadableContent("the Parquet file has no footer: it is cut off, or still being written")
	}
	return nil
}

// guard makes an error of a panic: the reader's, on bytes that no writer makes.
func guard(err *error, row uint64) {
	if p := recover(); p != nil {
		*err = damaged(fmt.Errorf("%v", p), row)
	}
}

func damaged(err error, row uint64) error {
	var path *fs.PathError
	if errors.As(err, &path) || errors.Is(err, context.Canceled) {
		return err
	}
	return &flaw{line: int64(row), row: true, what: fmt.Sprintf("the Parquet data are damaged: %v", err)}
}

// match finds the field of each column.
func (d *parquetDecoder) match() {
	d.source = make([]int, len(d.layout.columns))
	placed := make([]bool, len(d.fields))
	for i := range d.source {
		d.source[i] = -1
		for at, f := range d.fields {
			if f.name == d.layout.columns[i].Name {
				d.source[i], placed[at] = at, true
			}
		}
	}
	for at, f := range d.fields {
		if placed[at] {
			continue
		}
		if i := d.layout.folded(f.name); i >= 0 && d.source[i] < 0 {
			d.source[i] = at
			continue
		}
		d.extra = append(d.extra, at)
	}
}

// next implements decoder.
func (d *parquetDecoder) next(s *slab) (row change.Row, ordinal uint64, err error) {
	defer guard(&err, d.row+1)
	if d.at == d.n {
		if err := d.fill(); err != nil {
			return nil, 0, err
		}
	}
	d.row++
	clear(d.leaves)
	values := d.batch[d.at]
	d.at++
	for i := 0; i < len(values); {
		j, leaf := i+1, values[i].Column()
		for j < len(values) && values[j].Column() == leaf {
			j++
		}
		if leaf >= 0 && leaf < len(d.leaves) {
			d.leaves[leaf] = values[i:j]
		}
		i = j
	}
	for _, l := range d.leaves {
		if len(l) == 0 {
			return nil, 0, d.flaw("the Parquet data are damaged: a column lacks the row")
		}
	}
	return d.build(s)
}

func (d *parquetDecoder) build(s *slab) (change.Row, uint64, error) {
	columns := d.layout.columns
	row := s.row(32*len(columns) + 64)
	d.rescue.reset()
	for i := range columns {
		at := d.source[i]
		if at < 0 || d.fields[at].null(d.leaves) {
			row = appendNull(row)
			continue
		}
		start := len(row)
		var ok bool
		row, ok = d.value(openText(row), d.fields[at], &columns[i].Type)
		if ok {
			row = closeText(row, start)
			continue
		}
		row = appendNull(row[:start])
		d.rescueField(at)
	}
	for _, at := range d.extra {
		if !d.fields[at].null(d.leaves) {
			d.rescueField(at)
		}
	}
	row = d.rescue.append(row)
	if len(row) > maxRecord {
		return nil, 0, d.flaw(errRecordTooLong.Error())
	}
	if what := badCharacters(row, len(columns)+1); what != "" {
		return nil, 0, d.flaw(what)
	}
	return s.keep(row), d.row, nil
}

func (d *parquetDecoder) flaw(what string) *flaw {
	return &flaw{line: int64(d.row), row: true, what: what}
}

// value appends the canonical text of a field for a column's type.
func (d *parquetDecoder) value(row []byte, f *node, t *change.Type) ([]byte, bool) {
	jsonColumn := t.Kind == change.JSON || t.Kind == change.JSONB
	switch {
	case f.typ.Name == t.Name && !f.nested && !f.inexact:
		return f.print(row, d.leaves[f.first][0])
	case f.nested && (jsonColumn || t.Kind == change.Text):
		d.scratch = f.json(d.scratch[:0], d.leaves)
		return fit(row, d.scratch, t)
	case f.nested:
		return row, false
	case jsonColumn && f.typ.Kind != change.JSONB && f.typ.Kind != change.Text:
		return f.json(row, d.leaves), true
	}
	var ok bool
	if d.scratch, ok = f.print(d.scratch[:0], d.leaves[f.first][0]); !ok {
		return row, false
	}
	return fit(row, d.scratch, t)
}

func (d *parquetDecoder) rescueField(at int) {
	d.rescue.open([]byte(d.fields[at].name))
	d.rescue.members = d.fields[at].json(d.rescue.members, d.leaves)
}

// fill reads the next rows; io.EOF is the end of the file.
func (d *parquetDecoder) fill() error {
	for {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		if d.rows == nil {
			groups := d.file.RowGroups()
			if d.group == len(groups) {
				if int64(d.row) != d.file.NumRows() {
					return &flaw{row: true, what: fmt.Sprintf("the Parquet file announces %d rows and has %d", d.file.NumRows(), d.row)}
				}
				return io.EOF
			}
			d.rows = groups[d.group].Rows()
			d.group++
		}
		if d.after == nil {
			d.at = 0
			d.n, d.after = d.rows.ReadRows(d.batch)
			if d.n > 0 {
				return nil
			}
		}
		if d.after == io.EOF {
			d.after = d.rows.Close()
			d.rows = nil
		}
		if d.after != nil {
			return damaged(d.after, d.row+1)
		}
	}
}

func (d *parquetDecoder) close() {
	if d.rows != nil {
		d.rows.Close()
	}
}

// badCharacters looks for what no database can hold in text; values of the format's
// strings are whatever the writer put there.
func badCharacters(row change.Row, columns int) string {
	for range columns {
		v, rest, err := row.Next()
		if err != nil {
			return err.Error()
		}
		if !utf8.Valid(v.Data) {
			return flawUTF8
		}
		if bytes.IndexByte(v.Data, 0) >= 0 {
			return "the character NUL, which no database can hold in text"
		}
		row = rest
	}
	return ""
}
