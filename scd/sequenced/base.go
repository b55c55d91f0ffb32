package sequenced

import (
	"bytes"
	"encoding/binary"

	"tailrace/internal/change"
	"tailrace/scd"
)

// Base is the newest snapshot that a target was compared with. A snapshot at a version
// says of every key what it is at that version, or that it is not: as a truncate there and
// an upsert there of each of its rows (rule R69). Only the rows that differ become
// events; that the others are confirmed too is what the base says: an event at or below
// it comes too late, also one of a key that nobody knows (rule R71). It is not the
// truncate number, because what is remembered of the confirmed rows lies below it and
// stands.
type Base struct {
	Place   Place        // SnapshotPlace of the version
	Version change.Value // as a value of the sequence's type
	Taken   int64        // when the snapshot was taken, µs since the Unix epoch
	Rows    int64        // how many rows it had
	// Layout is the columns of its files, as their reader wrote them down: types that were
	// inferred stay what they were. Empty: of no files.
	Layout []byte
}

// IsZero reports that the target was compared with none.
func (b *Base) IsZero() bool { return b.Place.IsZero() }

// covers reports whether an event at p comes too late.
func (b *Base) covers(p Place) bool { return !b.IsZero() && p.Compare(b.Place) <= 0 }

// fromSnapshot is the first byte of an event's place in the source: a snapshot at a
// version comes after every event of a feed at that sequence, which it holds (rule R70).
const fromSnapshot byte = 0xF0

// SnapshotPlace is the place of all events of the snapshot at a version, in the form of
// AppendSequence.
func SnapshotPlace(version []byte) Place { return Place{Seq: version, At: []byte{fromSnapshot}} }

// FromSnapshot reports whether an event came of a snapshot.
func (p Place) FromSnapshot() bool { return len(p.At) > 0 && p.At[0] == fromSnapshot }

// Compared remembers, with the next work, that the target is as a snapshot says: its
// differences were added, all of them with the base's place.
func (l *Lane) Compared(b Base) { l.compared = &b }

// Base returns the newest snapshot; zero if there was none.
func (l *Lane) Base() Base { return l.base }

// SetBase tells the lane what is remembered of it.
func (l *Lane) SetBase(b Base) { l.base = b }

// Where base and failure are remembered, beside the definition: DefinitionLookup finds
// all three, which differ by their place in the source.
var baseAt, failedAt = []byte("base"), []byte("failed")

func (b *Base) record() Record {
	var body []byte
	for _, field := range [][]byte{b.Place.Seq, b.Version.Data, b.Layout} {
		body = append(binary.AppendUvarint(body, uint64(len(field))), field...)
	}
	body = binary.AppendVarint(binary.AppendVarint(body, b.Taken), b.Rows)
	return Record{Key: definition.Key, Seq: definition.Seq, At: baseAt, Body: body}
}

// Failed is why the newest snapshot was not applied, until one is.
type Failed struct {
	Reason string // no row values; empty: none failed
	At     int64  // µs since the Unix epoch
}

// Record is how a destination remembers it, in place of an earlier one.
func (f Failed) Record() Record {
	return Record{Key: definition.Key, Seq: definition.Seq, At: failedAt, Body: append(binary.AppendVarint(nil, f.At), f.Reason...)}
}

func (Failed) id() RecordID { return RecordID{definition.Key, definition.Seq, failedAt} }

// About is one thing that is remembered of a target as a whole; the others are zero.
type About struct {
	Definition string
	Base       Base
	Failed     Failed
}

// AboutTarget reads a record that DefinitionLookup found.
func AboutTarget(r *Record) (a About, err error) {
	switch {
	case bytes.Equal(r.At, baseAt):
		a.Base, err = readBase(r.Body)
	case bytes.Equal(r.At, failedAt):
		n, w := binary.Varint(r.Body)
		if w <= 0 {
			return a, errBody
		}
		a.Failed = Failed{Reason: string(r.Body[w:]), At: n}
	default:
		a.Definition = string(r.Body)
	}
	return a, err
}

func readBase(b []byte) (base Base, err error) {
	var fields [3][]byte
	for i := range fields {
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) {
			return Base{}, errBody
		}
		fields[i], b = bytes.Clone(b[w:w+int(n)]), b[w+int(n):]
	}
	base = Base{Place: SnapshotPlace(fields[0]), Version: change.Value{State: change.AsText, Data: fields[1]}, Layout: fields[2]}
	for _, into := range []*int64{&base.Taken, &base.Rows} {
		n, w := binary.Varint(b)
		if w <= 0 {
			return Base{}, errBody
		}
		*into, b = n, b[w:]
	}
	if len(b) > 0 {
		return Base{}, errBody
	}
	return base, nil
}

// shotLast reports whether the newest that is remembered of the key came of a snapshot.
func (l *Lane) shotLast() bool {
	newest := l.newestHeld()
	return newest != nil && newest.place().FromSnapshot()
}

// Whole makes key and row of a row that a snapshot has; ok is false if a key column is
// NULL.
func (s *Shaper) Whole(row change.Row) (key scd.Key, out change.Row, ok bool, err error) {
	if s.in, err = row.Values(s.in, s.flow.Inputs); err != nil {
		return nil, nil, false, err
	}
	if key, ok = s.key(s.in); !ok {
		return nil, nil, false, nil
	}
	out, _ = s.project(s.in, nil) // what it may refuse, no snapshot flow has
	return key, out, true, nil
}
