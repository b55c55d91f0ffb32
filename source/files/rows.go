package files

import (
	"encoding/binary"

	"tailrace/internal/change"
)

// slab is the memory that rows are written into. Rows of a piece follow each other
// in it, so that a row costs no allocation of its own. A row that outgrows what is
// left takes a new block with it; the rows before it keep the old one.
type slab struct {
	block []byte // len: used by finished rows; the row being written lies behind
	size  int    // of the next block
}

const (
	slabLeast = 4 << 10   // a file of a few rows
	slabMost  = 256 << 10 // large enough to make allocations rare, small beside a piece
)

// row returns where to append the next row: nothing in it, room for about n bytes.
func (s *slab) row(n int) []byte {
	if cap(s.block)-len(s.block) < n {
		s.size = min(max(2*s.size, slabLeast), slabMost)
		s.block = make([]byte, 0, max(s.size, n))
	}
	return s.block[len(s.block):len(s.block):cap(s.block)]
}

// keep finishes a row that was appended to what row returned.
func (s *slab) keep(row []byte) change.Row {
	if len(s.block)+len(row) <= cap(s.block) {
		s.block = s.block[:len(s.block)+len(row)]
	} else {
		s.block = row // it has moved to a block of its own
	}
	return change.Row(row[:len(row):len(row)])
}

func appendNull(row []byte) []byte { return append(row, byte(change.Null)) }

// openText begins a value whose length is not known yet; closeText sets it.
func openText(row []byte) []byte { return append(row, byte(change.AsText), 0, 0, 0, 0) }

// closeText ends the value that openText began when the row was start bytes long.
func closeText(row []byte, start int) []byte {
	binary.BigEndian.PutUint32(row[start+1:], uint32(len(row)-start-5))
	return row
}

// rescue gathers what of one record fits no column, as the members of a JSON object.
type rescue struct {
	members []byte // "name":value,...
	path    []byte // "_file_path":"..." of the file being read
	hasPath bool   // a member of that name is there
}

const filePathMember = "_file_path"

func newRescue(path string) rescue {
	return rescue{path: appendJSONString(append([]byte(nil), `"`+filePathMember+`":`...), path)}
}

func (r *rescue) reset() { r.members, r.hasPath = r.members[:0], false }

// open begins a member; its value is appended to r.members by the caller.
func (r *rescue) open(name []byte) {
	if len(r.members) > 0 {
		r.members = append(r.members, ',')
	}
	r.hasPath = r.hasPath || string(name) == filePathMember
	r.members = append(appendJSONString(r.members, name), ':')
}

// append ends a row with its last column.
func (r *rescue) append(row []byte) []byte {
	if len(r.members) == 0 {
		return appendNull(row)
	}
	start := len(row)
	row = append(append(openText(row), '{'), r.members...)
	if !r.hasPath {
		row = append(append(row, ','), r.path...)
	}
	return closeText(append(row, '}'), start)
}

// appendJSONString quotes text as JSON. Text is valid UTF-8 without NUL; where that is
// checked later, a NUL stays itself, to be found.
func appendJSONString[T []byte | string](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' || c == 0 {
			continue
		}
		dst = append(dst, text[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, text[from:]...), '"')
}
