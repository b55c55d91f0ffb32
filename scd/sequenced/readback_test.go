package sequenced_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd/sequenced"
)

func TestSequencesReadAsWhatTheyWere(t *testing.T) {
	kind := func(k change.Kind) change.Type { return change.Type{Kind: k, Name: "x"} }
	lsn := change.Type{Kind: change.Other, Name: "pg_lsn"}
	for _, c := range []struct {
		typ       change.Type
		text, out string // out empty: as text
	}{
		{kind(change.Bool), "t", "true"}, {kind(change.Bool), "f", "false"},
		{kind(change.Int16), "-32768", ""}, {kind(change.Int32), "0", ""}, {kind(change.Int64), "9223372036854775807", ""},
		{kind(change.Float64), "-1.5", ""}, {kind(change.Float64), "0", ""}, {kind(change.Float64), "1e+300", ""}, {kind(change.Float64), "NaN", ""},
		{kind(change.Float64), "Infinity", ""}, {kind(change.Float64), "-Infinity", ""}, {kind(change.Float32), "2.5", ""},
		{kind(change.Numeric), "0.00", "0"}, {kind(change.Numeric), "-12.50", "-12.5"}, {kind(change.Numeric), "1000", ""}, {kind(change.Numeric), "0.00012", ""},
		{kind(change.Numeric), "-0.7", ""}, {kind(change.Numeric), "123.456", ""}, {kind(change.Numeric), "NaN", ""}, {kind(change.Numeric), "-Infinity", ""}, {kind(change.Numeric), "Infinity", ""},
		{kind(change.Numeric), "7e200", "0.7e201"}, {kind(change.Numeric), "-3e-90", "-0.3e-89"},
		{kind(change.Text), "", ""}, {kind(change.Text), "a\x00b", ""}, {kind(change.Text), "ä\xff", ""},
		{kind(change.Bytes), `\x00ff00`, ""},
		{kind(change.Date), "2024-02-29", ""}, {kind(change.Date), "infinity", ""}, {kind(change.Date), "0044-03-15 BC", ""},
		{kind(change.Time), "23:59:59.000001", ""}, {kind(change.TimeTZ), "01:02:03+05:30", ""},
		{kind(change.Timestamp), "2024-01-01 00:00:00.5", ""}, {kind(change.TimestampTZ), "1969-12-31 23:59:59.999999+00", ""}, {kind(change.TimestampTZ), "-infinity", ""},
		{kind(change.TimestampTZ), "2024-01-01 02:00:00+02", "2024-01-01 00:00:00+00"},
		{kind(change.UUID), "00112233-4455-6677-8899-aabbccddeeff", ""},
		{lsn, "16/B374D848", ""},
	} {
		seq, err := sequenced.AppendSequence(nil, text(c.text), c.typ)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		want := c.out
		if want == "" {
			want = c.text
		}
		if got := sequenced.SequenceText(seq, []change.Type{c.typ}); got != want {
			t.Errorf("%q of kind %v reads as %q, want %q", c.text, c.typ.Kind, got, want)
		}
		// Behind another column.
		both, _ := sequenced.AppendSequence(nil, text("5"), bigint)
		if got := sequenced.SequenceText(append(both, seq...), []change.Type{bigint, c.typ}); got != "5, "+want {
			t.Errorf("as second column: %q", got)
		}
	}
}

func TestWhatCannotBeReadBackIsGivenInHexadecimal(t *testing.T) {
	for _, types := range [][]change.Type{nil, {bigint}, {textType}, {bigint, bigint}, {{Kind: change.JSONB, Name: "jsonb"}}} {
		if got := sequenced.SequenceText([]byte{1, 2}, types); got != "0102" {
			t.Errorf("%v: %q", types, got)
		}
	}
	if got := sequenced.At([]byte{9, 9}); got != "0909" {
		t.Errorf("a place: %q", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 { // never a panic
		b := make([]byte, r.IntN(40))
		for i := range b {
			b[i] = byte(r.IntN(256)) >> r.IntN(8)
		}
		for k := change.Bool; k <= change.UUID; k++ {
			sequenced.SequenceText(b, []change.Type{{Kind: k}})
		}
		sequenced.ReadAt(b)
	}
}

func TestPlacesReadAsWhatTheyWere(t *testing.T) {
	at := change.LSN(0x16B374D848)
	for _, c := range []struct {
		place []byte
		flow  uint16
		want  string
	}{
		{sequenced.AppendLog(nil, at, false, 3, 7), 7, "16/B374D848, change 3"},
		{sequenced.AppendLog(nil, at, true, 1<<40, 0), 0, "first copy at 16/B374D848, row 1099511627776"},
		{sequenced.AppendLog(nil, change.Position{Epoch: 1, File: 2, Offset: 3}, false, 0, 65535), 65535, "1:2:3, change 0"},
		{sequenced.AppendFile(nil, "in/a b.jsonl", 12, 1), 1, "in/a b.jsonl, line 12"},
		{sequenced.AppendFile(nil, "x", 0, 0), 0, "x, line 0"},
	} {
		s, err := sequenced.ReadAt(c.place)
		if err != nil || s.String() != c.want || s.Flow != c.flow || sequenced.At(c.place) != c.want {
			t.Errorf("%+v, %v; want %s", s, err, c.want)
		}
		var again []byte
		if s.Path != "" {
			again = sequenced.AppendFile(nil, s.Path, s.Line, s.Flow)
		} else {
			again = sequenced.AppendLog(nil, s.Log, s.Copied, s.Line, s.Flow)
		}
		if !bytes.Equal(again, c.place) {
			t.Errorf("%s is written as % x, was % x", s, again, c.place)
		}
	}
}
