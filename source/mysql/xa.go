package mysql

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"tailrace/internal/fault"
)

// Distributed (XA) transactions.
//
// The log has such a transaction in two parts: what it wrote, up to its PREPARE, and much
// later, in a group of its own, its COMMIT or ROLLBACK. Other transactions commit in
// between. What it wrote counts at its COMMIT: the rows take that place in the order of
// everything, and a mark between the two is as good as any.
//
// So the first part is kept back, in memory if it is small. Nothing of it is in the mark:
// the log itself is where it is found again, if it was large or the stream has begun
// behind it. Another connection reads it from there while this one waits. The server
// keeps tables that a prepared transaction wrote from being altered.

// firstParts are those of distributed transactions whose second part is to come.
type firstParts struct {
	parts map[string]part // by identifier
	bytes int             // of events, kept in memory
}

// part is the first part of one.
type part struct {
	at      place
	events  [][]byte // what is to be done at its COMMIT
	far     bool     // events are not here: to be read from the log again
	version uint64   // of what was followed when it was read
}

// place is where a group begins.
type place struct {
	file   string
	offset uint64
}

// preparedBytes bounds what prepared transactions keep in memory, all together.
const preparedBytes = 16 << 20

func sizeOf(events [][]byte) (n int) {
	for _, e := range events {
		n += len(e)
	}
	return n
}

// keep keeps an event of the open group's first part.
func (f *follower) keep(raw []byte) {
	p := &f.group.part
	if p.far {
		return
	}
	if f.group.kept += len(raw); f.prepared.bytes+f.group.kept > preparedBytes {
		p.events, p.far = nil, true
		return
	}
	p.events = append(p.events, bytes.Clone(raw))
}

// hold takes an event of a first part that describes a table or changes rows.
func (f *follower) hold(raw []byte, h header) error {
	data := raw[headerBytes:]
	if h.typ == replication.TABLE_MAP_EVENT {
		if err := f.tableMap(f.ctx, raw, data); err != nil {
			return err
		}
	}
	if len(data) < 6 {
		return fault.Corrupted("the log has a row event at %s that cannot be read", f.at())
	}
	if l, known := f.layouts.find(uintAt(data, 6)); known && l.table == nil {
		return nil
	}
	f.keep(raw)
	return nil
}

// beginPart begins the first part of a distributed transaction.
func (f *follower) beginPart() {
	f.group.xa = true
	f.group.part = part{at: place{f.file, f.group.at}, far: f.group.had, version: f.source.followedVersion()}
}

// xaPrepare ends a first part; or all of it, where it committed in one phase.
func (f *follower) xaPrepare(data []byte) error {
	id, onePhase, ok := readXID(data)
	if !ok {
		return fault.Corrupted("the log has a distributed (XA) transaction at %s that cannot be read", f.at())
	}
	p := f.group.part
	f.group.xa, f.group.part = false, part{}
	if onePhase {
		if !f.group.had {
			if err := f.apply(p); err != nil {
				return err
			}
		}
		return f.commit()
	}
	f.forget(id)
	if f.prepared.parts == nil {
		f.prepared.parts = map[string]part{}
	}
	f.prepared.parts[id] = p
	f.prepared.bytes += sizeOf(p.events)
	return f.commit()
}

func (f *follower) forget(id string) {
	f.prepared.bytes -= sizeOf(f.prepared.parts[id].events)
	delete(f.prepared.parts, id)
}

// xaEnd takes the second part of a distributed transaction.
func (f *follower) xaEnd(text string, commits bool) error {
	id, ok := parseXID(text)
	if !ok {
		return fault.Corrupted("the log ends a distributed (XA) transaction at %s that has no readable name", f.at())
	}
	p, known := f.prepared.parts[id]
	f.forget(id)
	if commits && !f.group.had {
		if !known {
			at, err := f.find(id)
			if err != nil {
				return err
			}
			p = part{at: at, far: true}
		}
		if err := f.apply(p); err != nil {
			return err
		}
	}
	return f.commit()
}

// apply does what a first part holds, in the open group.
func (f *follower) apply(p part) error {
	if p.far || p.version != f.source.followedVersion() {
		r := &partReader{follower: f, at: p.at}
		return r.read(p.at.offset)
	}
	for _, raw := range p.events {
		if err := f.event(raw, headerOf(raw), f.position()); err != nil {
			return err
		}
	}
	return nil
}

// find looks for the newest PREPARE of a distributed transaction that was in the log
// before the stream began.
func (f *follower) find(id string) (place, error) {
	files, err := f.source.logFiles(f.ctx)
	if err != nil {
		return place{}, err
	}
	for _, file := range slices.Backward(files) {
		_, n, err := numberOf(file.name)
		if err != nil {
			return place{}, err
		}
		if n > f.number {
			continue
		}
		f.source.log.Info("looking for the beginning of a distributed (XA) transaction", "file", file.name)
		r := &partReader{follower: f, at: place{file: file.name}, id: id}
		if n == f.number {
			r.until = f.group.at
		}
		if err := r.read(fileBegin); err != nil {
			return place{}, err
		}
		if r.found != 0 {
			return place{file.name, r.found}, nil
		}
	}
	return place{}, fault.Refuse("`tailrace run --overwrite` copies everything again; then keep the log for longer than distributed transactions stay prepared",
		"the log commits a distributed (XA) transaction at %s whose beginning is in none of its files any more: which rows it wrote is not known", f.at())
}

// partReader reads a part of the log again, over another connection.
type partReader struct {
	follower *follower
	at       place
	id       string // look for the PREPARE of this one; empty: hand on the part that begins at at
	until    uint64 // look no further; 0: to the end of the file
	found    uint64 // where the group of the newest one begins; 0: nowhere

	sums   bool
	offset uint64
	group  uint64 // where the newest group begins
	done   bool
	failed error
}

var errPartRead = errors.New("read")

func (r *partReader) read(from uint64) error {
	f := r.follower
	r.offset = from
	if from > positionEnds { // the file's first events come then
		r.offset = fileBegin
	}
	err := f.source.readLog(f.ctx, f.facts, replicaNumber(fmt.Sprint("tailrace parts ", f.source.cfg.ServerID, f.source.cfg.Pipeline)), r.at.file, from, func(bool) (time.Duration, error) { return 0, nil }, r)
	switch {
	case r.failed != nil:
		return r.failed
	case r.done:
		return nil
	}
	return f.source.explainStream(err)
}

// HandleEvent takes one raw event; the library calls it.
func (r *partReader) HandleEvent(e *replication.BinlogEvent) error {
	if !r.done && r.failed == nil {
		r.failed = r.take(e.RawData)
	}
	if r.done {
		return errPartRead
	}
	return r.failed
}

func (r *partReader) take(raw []byte) error {
	f := r.follower
	if len(raw) < headerBytes {
		return fault.Corrupted("the log has an event of %d bytes in file %s", len(raw), r.at.file)
	}
	h := headerOf(raw)
	artificial := h.next == 0 || h.flags&flagArtificial != 0
	switch h.typ {
	case replication.FORMAT_DESCRIPTION_EVENT:
		d, err := readDescription(replication.NewBinlogParser(), raw)
		if err != nil {
			return err
		}
		r.sums = d.ChecksumAlgorithm == replication.BINLOG_CHECKSUM_ALG_CRC32
		return nil
	case replication.ROTATE_EVENT:
		// The first one names this file.
		r.done = !artificial || !bytes.HasPrefix(raw[min(headerBytes+8, len(raw)):], []byte(r.at.file))
		if r.done && r.id == "" {
			return fault.Corrupted("log file %s ends inside a distributed (XA) transaction", r.at.file)
		}
		return nil
	case replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2:
		return nil
	}
	if r.sums {
		var err error
		if raw, err = f.withoutSum(raw); err != nil {
			return err
		}
	}
	begin := r.offset
	if !artificial {
		r.offset = advanced(r.offset, h.next)
	}
	if r.id == "" && begin < r.at.offset {
		return nil
	}
	if r.until != 0 && begin >= r.until {
		r.done = true
		return nil
	}
	return r.event(raw, h, begin)
}

func (r *partReader) event(raw []byte, h header, begin uint64) error {
	f := r.follower
	data := raw[headerBytes:]
	switch h.typ {
	case replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT, replication.MARIADB_GTID_EVENT:
		r.group = begin
	case xaPrepareEvent:
		if r.id == "" {
			r.done = true
			return nil
		}
		if id, onePhase, ok := readXID(data); ok && !onePhase && id == r.id {
			r.found = r.group
		}
	case payloadEvent:
		return f.unpack(data, func(raw []byte) error { return r.event(raw, headerOf(raw), begin) })
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		if r.id != "" {
			return nil
		}
		s, ok := readStatement(data, h.typ != replication.QUERY_EVENT)
		if !ok {
			return fault.Corrupted("the log has a statement in file %s that cannot be read", r.at.file)
		}
		if word, _ := firstWord(s.text); word == "XA" {
			return nil
		}
		return f.event(raw, h, f.position())
	default:
		if r.id == "" && onlyRows(h.typ) {
			return f.event(raw, h, f.position())
		}
	}
	return nil
}

// readXID reads the event of a PREPARE: whether it commits in one phase (1 byte), the
// format's number, the lengths of the two halves of the name (4 bytes each), the name.
func readXID(data []byte) (id string, onePhase, ok bool) {
	const fixed = 13
	if len(data) < fixed {
		return "", false, false
	}
	n, m := int(binary.LittleEndian.Uint32(data[5:])), int(binary.LittleEndian.Uint32(data[9:]))
	const most = 64
	if n > most || m > most || len(data) < fixed+n+m {
		return "", false, false
	}
	return xid(int32(binary.LittleEndian.Uint32(data[1:])), data[fixed:fixed+n], data[fixed+n:fixed+n+m]), data[0] != 0, true
}

// parseXID reads X'676c6f62616c',X'6272616e6368',1, as the servers write it.
func parseXID(text string) (id string, ok bool) {
	fields := strings.Split(strings.TrimSpace(text), ",")
	if len(fields) != 3 {
		return "", false
	}
	var halves [2][]byte
	for i := range halves {
		digits, found := strings.CutPrefix(strings.TrimSpace(fields[i]), "X'")
		digits, closed := strings.CutSuffix(digits, "'")
		half, err := hex.DecodeString(digits)
		if !found || !closed || err != nil {
			return "", false
		}
		halves[i] = half
	}
	format, err := strconv.ParseInt(strings.TrimSpace(fields[2]), 10, 32)
	return xid(int32(format), halves[0], halves[1]), err == nil
}

func xid(format int32, global, branch []byte) string {
	return fmt.Sprintf("%d %x %x", format, global, branch)
}
