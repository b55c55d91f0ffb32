package pgoutput

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
	"time"

	"tailrace/internal/change"
)

// msg builds messages as the server does.
type msg []byte

func (m msg) u8(v byte) msg    { return append(m, v) }
func (m msg) u16(v uint16) msg { return binary.BigEndian.AppendUint16(m, v) }
func (m msg) u32(v uint32) msg { return binary.BigEndian.AppendUint32(m, v) }
func (m msg) u64(v uint64) msg { return binary.BigEndian.AppendUint64(m, v) }
func (m msg) str(s string) msg { return append(append(m, s...), 0) }
func (m msg) row(n int, r change.Row) msg {
	return append(m.u16(uint16(n)), r...)
}

func row(values ...change.Value) change.Row {
	r := change.Row{}
	for _, v := range values {
		r = r.Append(v)
	}
	return r
}

func text(s string) change.Value { return change.Value{State: change.AsText, Data: []byte(s)} }

var (
	null   = change.Value{State: change.Null}
	absent = change.Value{State: change.Absent}
)

// samples are well-formed messages of every kind, with what they mean.
func samples() map[string]struct {
	data msg
	want Message
} {
	type sample = struct {
		data msg
		want Message
	}
	r1, r2 := row(text("1"), null, absent), row(text("2"), text(""), change.Value{State: change.Binary, Data: []byte{0, 1}})
	return map[string]sample{
		"begin":  {msg{'B'}.u64(7).u64(5).u32(9), Message{Kind: Begin, LSN: 7, Time: 5, XID: 9}},
		"commit": {msg{'C'}.u8(0).u64(7).u64(8).u64(5), Message{Kind: Commit, LSN: 7, End: 8, Time: 5}},
		"origin": {msg{'O'}.u64(3).str("elsewhere"), Message{Kind: Origin, LSN: 3, Name: "elsewhere"}},
		"relation": {msg{'R'}.u32(16400).str("public").str("a\"b").u8('f').u16(2).
			u8(1).str("id").u32(23).u32(^uint32(0)).u8(0).str("größe").u32(1700).u32(786438),
			Message{Kind: Relation, Layout: Layout{ID: 16400, Schema: "public", Name: "a\"b", Identity: change.IdentityFull,
				Columns: []Column{{true, "id", 23, -1}, {false, "größe", 1700, 786438}}}}},
		"relation of pg_catalog": {msg{'R'}.u32(1).str("").str("x").u8('n').u16(0),
			Message{Kind: Relation, Layout: Layout{ID: 1, Schema: "pg_catalog", Name: "x", Identity: change.IdentityNothing}}},
		"type":                {msg{'Y'}.u32(16500).str("public").str("mood"), Message{Kind: Type, TypeID: 16500, Schema: "public", Name: "mood"}},
		"insert":              {msg{'I'}.u32(16400).u8('N').row(3, r1), Message{Kind: Insert, Rel: 16400, New: r1, NewCols: 3}},
		"insert no columns":   {msg{'I'}.u32(16400).u8('N').row(0, nil), Message{Kind: Insert, Rel: 16400, New: change.Row{}, NewCols: 0}},
		"update":              {msg{'U'}.u32(16400).u8('N').row(3, r2), Message{Kind: Update, Rel: 16400, New: r2, NewCols: 3}},
		"update with key":     {msg{'U'}.u32(16400).u8('K').row(3, r1).u8('N').row(3, r2), Message{Kind: Update, Rel: 16400, Old: r1, OldCols: 3, OldIsKey: true, New: r2, NewCols: 3}},
		"update with old row": {msg{'U'}.u32(16400).u8('O').row(3, r1).u8('N').row(3, r2), Message{Kind: Update, Rel: 16400, Old: r1, OldCols: 3, New: r2, NewCols: 3}},
		"delete by key":       {msg{'D'}.u32(16400).u8('K').row(3, r1), Message{Kind: Delete, Rel: 16400, Old: r1, OldCols: 3, OldIsKey: true}},
		"delete by old row":   {msg{'D'}.u32(16400).u8('O').row(3, r1), Message{Kind: Delete, Rel: 16400, Old: r1, OldCols: 3}},
		"truncate":            {msg{'T'}.u32(2).u8(3).u32(16400).u32(16410), Message{Kind: Truncate, Rels: []uint32{16400, 16410}, Cascade: true, RestartIdentity: true}},
		"stream start":        {msg{'S'}.u32(9).u8(1), Message{Kind: StreamStart, XID: 9, First: true}},
		"stream goes on":      {msg{'S'}.u32(9).u8(0), Message{Kind: StreamStart, XID: 9}},
		"stream stop":         {msg{'E'}, Message{Kind: StreamStop}},
		"stream commit":       {msg{'c'}.u32(9).u8(0).u64(7).u64(8).u64(5), Message{Kind: StreamCommit, XID: 9, LSN: 7, End: 8, Time: 5}},
		"stream abort":        {msg{'A'}.u32(9).u32(11), Message{Kind: StreamAbort, XID: 9, SubXID: 11}},
		"logical message":     {msg{'M'}.u8(1).u64(11).str("app").u32(3).u8(1).u8(2).u8(3), Message{Kind: Logical, Transactional: true, LSN: 11, Prefix: "app", Content: []byte{1, 2, 3}}},
	}
}

func TestParseReadsEveryKind(t *testing.T) {
	for name, s := range samples() {
		var got Message
		if err := Parse(s.data, &got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(got, s.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, s.want)
		}
	}
}

func TestParseRefusesEveryCutAndEverySurplus(t *testing.T) {
	for name, s := range samples() {
		for n := range s.data {
			var m Message
			if err := Parse(s.data[:n], &m); err == nil {
				t.Errorf("%s cut to %d of %d bytes was accepted", name, n, len(s.data))
			} else if !errors.Is(err, ErrMalformed) {
				t.Errorf("%s cut to %d: %v", name, n, err)
			}
		}
		var m Message
		if err := Parse(append(append(msg{}, s.data...), 0), &m); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s with a byte too many: %v", name, err)
		}
	}
}

// A message inside a block of an open transaction is the same message with an id
// behind its kind.
func TestStreamedTakesTheIDOutOfEveryMessage(t *testing.T) {
	for name, s := range samples() {
		in := append(msg{s.data[0]}.u32(77), s.data[1:]...)
		wantXID := uint32(77)
		switch s.want.Kind {
		case Origin:
			in, wantXID = s.data, 0
		case Begin, Commit, StreamStart, StreamStop, StreamCommit, StreamAbort:
			if _, _, err := Streamed(in); !errors.Is(err, ErrUnknown) {
				t.Errorf("%s inside a block: %v", name, err)
			}
			continue
		}
		xid, body, err := Streamed(in)
		if err != nil || xid != wantXID || string(body) != string(s.data[1:]) {
			t.Errorf("%s: xid %d, body %q, %v", name, xid, body, err)
		}
		var got Message
		if err := Parse(append([]byte{in[0]}, body...), &got); err != nil || !reflect.DeepEqual(got, s.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for n := range 5 {
			if _, _, err := Streamed(in[:min(n, len(in))]); err == nil && s.want.Kind != Origin {
				t.Errorf("%s cut to %d bytes was accepted", name, n)
			}
		}
	}
}

func TestParseRefusesWhatProtocol2DoesNotHave(t *testing.T) {
	for _, kind := range []byte("bPKrp\x00") {
		if err := Parse([]byte{kind, 0, 0, 0, 0}, new(Message)); !errors.Is(err, ErrUnknown) {
			t.Errorf("kind %q: %v", kind, err)
		}
	}
}

func TestParseDoesNotAllocateForRows(t *testing.T) {
	r := row(text("1"), text("some text"), null)
	update := msg{'U'}.u32(16400).u8('K').row(3, r).u8('N').row(3, r)
	var m Message
	if n := testing.AllocsPerRun(100, func() {
		if err := Parse(update, &m); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a row", n)
	}
}

func TestInstantIsTheServersTime(t *testing.T) {
	want := time.Date(2024, 2, 29, 23, 59, 59, 999_999_000, time.UTC)
	if got := Instant(Micros(want)); !got.Equal(want) {
		t.Errorf("got %v", got)
	}
	if got := Instant(0); !got.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("zero is %v", got)
	}
}

// FuzzParse: hostile bytes give an error, or a message whose rows walk to their
// ends exactly.
func FuzzParse(f *testing.F) {
	for _, s := range samples() {
		f.Add([]byte(s.data))
		f.Add([]byte(append(msg{s.data[0]}.u32(77), s.data[1:]...)))
	}
	f.Add([]byte{'I', 0, 0, 0, 1, 'N', 0xff, 0xff, 't', 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{'T', 0xff, 0xff, 0xff, 0xff, 0})
	f.Add([]byte{'R', 0, 0, 0, 1, 'a', 0, 'b', 0, 'd', 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		walk(t, data)
		if _, body, err := Streamed(data); err == nil {
			walk(t, append([]byte{data[0]}, body...)) // as it is read back
		}
	})
}

func walk(t *testing.T, data []byte) {
	var m Message
	if err := Parse(data, &m); err != nil {
		return
	}
	switch m.Kind {
	case Insert, Update, Delete:
		if _, err := m.New.Values(nil, m.NewCols); err != nil {
			t.Fatalf("new row: %v", err)
		}
		if _, err := m.Old.Values(nil, m.OldCols); err != nil {
			t.Fatalf("old row: %v", err)
		}
	}
}
