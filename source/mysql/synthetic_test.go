package mysql

import (
	"context"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"

	"tailrace/internal/change"
	"tailrace/internal/change/segment"
	"tailrace/internal/fault"
)

// fed is a follower that is given events by the test, as if it read a file of MariaDB.
func fed(t *testing.T, from change.Position) (f *follower, got *[]change.Tx) {
	t.Helper()
	s, err := New(Config{DSN: "mysql://nobody@127.0.0.1:1/none", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	got = &[]change.Tx{}
	f = &follower{source: s, ctx: t.Context(), facts: &server{mariaDB: true}, from: from, parser: replication.NewBinlogParser(),
		file: "binlog.000007", number: from.File, offset: from.Offset, set: gtids{mariaDB: true}, held: gtids{mariaDB: true},
		out: func(_ context.Context, seg *change.Segment) error {
			*got = append(*got, seg.Txs...)
			return nil
		}}
	f.build.PieceBytes, f.build.End = segment.DefaultPiece, from
	f.layouts.forget()
	return f, got
}

// raw is an event that ends at a place, of which it says the lower half.
func raw(typ replication.EventType, end uint64, data ...byte) []byte {
	b := make([]byte, headerBytes, headerBytes+len(data))
	binary.LittleEndian.PutUint32(b, 1764512345)
	b[4] = byte(typ)
	binary.LittleEndian.PutUint32(b[5:], 1)
	binary.LittleEndian.PutUint32(b[9:], uint32(headerBytes+len(data)))
	binary.LittleEndian.PutUint32(b[13:], uint32(end))
	return append(b, data...)
}

func gtidEvent(end, n uint64) []byte {
	return raw(replication.MARIADB_GTID_EVENT, end, append(binary.LittleEndian.AppendUint64(nil, n), 0, 0, 0, 0, 0)...)
}

func (f *follower) feed(t *testing.T, events ...[]byte) {
	t.Helper()
	for _, e := range events {
		if err := f.take(e, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.handOn(true); err != nil {
		t.Fatal(err)
	}
}

// Events say the lower four bytes of where they end, and a file may be larger.
func TestOffsetsAboveFourGigabytes(t *testing.T) {
	const four = 1 << 32
	f, got := fed(t, change.Position{File: 7, Offset: four - 500})
	commits := []uint64{four - 100, four + 81, four + 4000, 2*four - 3, 2*four + 31, 2*four + 31 + 1<<30, 3*four + 8}
	for i, end := range commits {
		for f.offset+1<<30 < end { // no event is longer than 1 GB
			f.feed(t, raw(replication.MARIADB_ANNOTATE_ROWS_EVENT, f.offset+1<<30))
		}
		f.feed(t, gtidEvent(end-31, uint64(i+1)), raw(replication.XID_EVENT, end, make([]byte, 8)...))
		last := (*got)[len(*got)-1]
		if want := (change.Position{File: 7, Offset: end}); last.End != want || f.position() != want {
			t.Errorf("the commit that ends at %d ends at %s", end, last.End)
		}
	}
	if p := (change.Position{File: 7, Offset: commits[len(commits)-1]}); p.Number() != "700000000012884901896" {
		t.Error(p.Number())
	}

	// A stream that begins there reads over what is before, and hands on nothing of it.
	f, got = fed(t, change.Position{File: 7, Offset: four + 81})
	f.offset, f.ahead = fileBegin, f.offset
	for at := uint64(1 << 30); at < four; at += 1 << 30 {
		f.feed(t, gtidEvent(at-31, at), raw(replication.XID_EVENT, at, make([]byte, 8)...))
	}
	f.feed(t, gtidEvent(four+50, 9), raw(replication.XID_EVENT, four+81, make([]byte, 8)...))
	if len(*got) != 0 || len(f.set.parts) != 0 || f.group.open {
		t.Errorf("%d transactions from before the position, GTIDs %s", len(*got), f.set.String())
	}
	f.feed(t, gtidEvent(four+150, 10), raw(replication.XID_EVENT, four+181, make([]byte, 8)...))
	if len(*got) != 1 || (*got)[0].End.Offset != four+181 || f.set.String() != "0-1-10" {
		t.Errorf("%+v, GTIDs %s", *got, f.set.String())
	}
	// A place inside an event is none.
	f, _ = fed(t, change.Position{File: 7, Offset: four + 81})
	f.offset, f.ahead = four-20, f.offset
	if err := f.take(raw(replication.MARIADB_ANNOTATE_ROWS_EVENT, four+90), false); fault.KindOf(err) != fault.Operator {
		t.Errorf("%v", err)
	}
}

func TestIncidentStopsTheStream(t *testing.T) {
	f, got := fed(t, change.Position{File: 7, Offset: 500})
	f.feed(t, gtidEvent(600, 1), raw(replication.XID_EVENT, 631, make([]byte, 8)...))
	// LOST_EVENTS, and what the server says of it.
	err := f.take(raw(replication.INCIDENT_EVENT, 700, append([]byte{1, 0, 5}, "error"...)...), false)
	if fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), "incident") || !strings.Contains(err.Error(), "binlog.000007:700") {
		t.Errorf("%v", err)
	}
	if len(*got) != 1 || (*got)[0].End.Offset != 631 {
		t.Errorf("before it: %+v", *got)
	}
}

// The list at the beginning of a file says what a stream does not know that begins where
// MariaDB's functions cannot look.
func TestGTIDsAreReadFromTheNextFile(t *testing.T) {
	f, _ := fed(t, change.Position{File: 7, Offset: 1 << 33})
	f.unknown = true
	f.feed(t, gtidEvent(1<<33+80, 5), raw(replication.XID_EVENT, 1<<33+111, make([]byte, 8)...))
	if r, err := parseResume(f.resume()); err != nil || r.gtids != "" {
		t.Errorf("%+v: %v", r, err)
	}
	list := binary.LittleEndian.AppendUint32(nil, 3)
	for _, g := range []struct {
		domain, server uint32
		n              uint64
	}{{0, 1, 5}, {0, 2, 6}, {3, 1, 9}} {
		list = binary.LittleEndian.AppendUint32(list, g.domain)
		list = binary.LittleEndian.AppendUint32(list, g.server)
		list = binary.LittleEndian.AppendUint64(list, g.n)
	}
	f.feed(t, raw(replication.ROTATE_EVENT, 1<<33+150, append(binary.LittleEndian.AppendUint64(nil, 4), "binlog.000008"...)...), raw(replication.MARIADB_GTID_LIST_EVENT, 300, list...))
	if r, err := parseResume(f.resume()); err != nil || r.gtids != "0-2-6,3-1-9" || r.file != "binlog.000008" {
		t.Errorf("%+v: %v", r, err)
	}
}
