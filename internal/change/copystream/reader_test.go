package copystream_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
)

func all(r *copystream.Reader, columns int) ([][]change.Value, error) {
	var rows [][]change.Value
	for {
		row, err := r.Next()
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		vals, err := change.Row(bytes.Clone(row)).Values(nil, columns)
		if err != nil {
			return rows, err
		}
		rows = append(rows, vals)
	}
}

func TestTextRows(t *testing.T) {
	rows, err := all(copystream.NewReader(strings.NewReader("1\t\\N\n2\ta\\tb\\\\c\\nd\n3\t\n"), false, 2), 2)
	if err != nil || len(rows) != 3 {
		t.Fatalf("%v %v", rows, err)
	}
	if rows[0][1].State != change.Null || string(rows[1][1].Data) != "a\tb\\c\nd" || rows[2][1].State != change.AsText || len(rows[2][1].Data) != 0 {
		t.Fatalf("%q", rows)
	}
	for _, bad := range []string{"1\n", "1\t2\t3\n", "1\t2"} {
		if _, err := all(copystream.NewReader(strings.NewReader(bad), false, 2), 2); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestBinaryRows(t *testing.T) {
	head := "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	row := "\x00\x02\x00\x00\x00\x04abcd\xff\xff\xff\xff"
	whole := head + row + row + "\xff\xff"
	rows, err := all(copystream.NewReader(strings.NewReader(whole), true, 2), 2)
	if err != nil || len(rows) != 2 || string(rows[1][0].Data) != "abcd" || rows[1][1].State != change.Null {
		t.Fatalf("%v %v", rows, err)
	}
	for cut := range len(whole) {
		if _, err := all(copystream.NewReader(strings.NewReader(whole[:cut]), true, 2), 2); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	if _, err := all(copystream.NewReader(strings.NewReader(head+"\x00\x01\x00\x00\x00\x00\xff\xff"), true, 2), 2); err == nil {
		t.Error("a row of another width was accepted")
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x7f\xff\xff\xff"), true)
	f.Add([]byte("1\t\\N\n"), false)
	f.Fuzz(func(t *testing.T, b []byte, binary bool) {
		all(copystream.NewReader(bytes.NewReader(b), binary, 1), 1)
	})
}

// What the Writer writes the Reader reads, whatever the values hold.
func TestWrittenRowsAreRead(t *testing.T) {
	values := []string{"", "\\N", "\\.", "a\tb\nc\rd\\e\\", "\x00\x01\xff", "\b\f\v", strings.Repeat("long ", 50_000)}
	for _, form := range []change.State{change.AsText, change.Binary} {
		for _, columns := range []int{1, 3} {
			var rows []change.Row
			for i := range values {
				row := change.Row{}
				for c := range columns {
					v := change.Value{State: form, Data: []byte(values[(i+c)%len(values)])}
					if c == 1 && i%2 == 0 {
						v = change.Value{State: change.Null}
					}
					row = row.Append(v)
				}
				rows = append(rows, row)
			}
			for _, some := range [][]change.Row{nil, rows} {
				var b bytes.Buffer
				w := copystream.NewWriter(&b, form == change.Binary)
				for _, row := range some {
					if err := w.Row(row, columns); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.End(); err != nil {
					t.Fatal(err)
				}
				got, err := all(copystream.NewReader(&b, form == change.Binary, columns), columns)
				if err != nil || len(got) != len(some) {
					t.Fatalf("%d rows of %d, %v", len(got), len(some), err)
				}
				for i := range got {
					again := change.Row{}
					for _, v := range got[i] {
						again = again.Append(v)
					}
					if !bytes.Equal(again, some[i]) {
						t.Errorf("row %d in form %q came back as %q", i, form, again)
					}
				}
			}
		}
	}
	w := copystream.NewWriter(io.Discard, true)
	for _, v := range []change.Value{{State: change.AsText}, {State: change.Absent}} {
		if err := w.Row(change.Row{}.Append(v), 1); err == nil {
			t.Errorf("a value in state %q was accepted", v.State)
		}
	}
}
