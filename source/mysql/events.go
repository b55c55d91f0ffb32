package mysql

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zstd"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Events that the library has no name for.
const (
	xaPrepareEvent = 38
	partialUpdate  = 39
	payloadEvent   = 40
)

// Flags of MariaDB's GTID event (log_event.h of its source).
const (
	flagStandalone = 1
	flagPrepared   = 64 // the first part of a distributed transaction
)

// event takes what an event holds; before is where it begins.
func (f *follower) event(raw []byte, h header, before change.Position) error {
	data := raw[headerBytes:]
	if (f.group.had || f.group.xa) && onlyRows(h.typ) {
		if f.group.had {
			return nil
		}
		return f.hold(raw, h)
	}
	switch h.typ {
	case replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1,
		replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		return f.rows(h.typ, data, h, before)
	case partialUpdate:
		return f.partial(data)
	case replication.TABLE_MAP_EVENT:
		return f.tableMap(f.ctx, raw, data)
	case replication.XID_EVENT:
		return f.commit()
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return f.query(raw, h, before)
	case replication.MARIADB_GTID_EVENT:
		return f.mariaGTID(data, h, before)
	case replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return f.gtid(raw, h, before)
	case replication.ROTATE_EVENT:
		return f.rotate(data, h)
	case replication.FORMAT_DESCRIPTION_EVENT:
		return f.newFile(raw, h)
	case replication.MARIADB_GTID_LIST_EVENT:
		return f.gtidList(data)
	case payloadEvent:
		return f.payload(data)
	case xaPrepareEvent:
		return f.xaPrepare(data)
	case replication.HEARTBEAT_EVENT:
		// The server has skipped nothing for us: it says where it waits.
		if !f.group.open && h.next != 0 {
			f.advance(h.next)
		}
	case replication.INCIDENT_EVENT:
		return fault.Refuse("`tailrace run --overwrite` copies everything again",
			"the source has written an incident into its log at %s: changes were lost there, and are in no log", f.at())
	case replication.BEGIN_LOAD_QUERY_EVENT, replication.EXECUTE_LOAD_QUERY_EVENT, replication.LOAD_EVENT, replication.NEW_LOAD_EVENT:
		return fault.Refuse("SET GLOBAL binlog_format = 'ROW', end the sessions that have another, then `tailrace run --overwrite`",
			"the log holds a LOAD DATA as a statement at %s: which rows it wrote is not in the log", f.at())
	}
	return nil
}

// onlyRows reports whether an event does nothing but describe tables and change rows.
func onlyRows(typ replication.EventType) bool {
	switch typ {
	case replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1,
		replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1,
		replication.TABLE_MAP_EVENT, partialUpdate:
		return true
	}
	return false
}

// open begins a group. Its number is what messages call it by.
func (f *follower) open(at change.Position, id gtid, when time.Time) error {
	if f.group.open {
		return fault.Corrupted("the log begins a transaction at %s inside another", f.at())
	}
	had, err := f.pass(id)
	if err != nil {
		return err
	}
	f.group = group{open: true, at: at.Offset, had: had}
	f.current, f.saved = id, f.saved[:0]
	xid := uint32(id.n)
	if id.n == 0 {
		xid = uint32(at.Offset)
	}
	f.build.Begin(at, max(xid, 1), when)
	return nil
}

func (f *follower) mariaGTID(data []byte, h header, before change.Position) error {
	if len(data) < 13 {
		return fault.Corrupted("the log has a GTID of %d bytes after %s", len(data), f.at())
	}
	id := gtid{origin: domain(binary.LittleEndian.Uint32(data[8:])), server: h.server, n: binary.LittleEndian.Uint64(data)}
	if err := f.open(before, id, time.Unix(int64(h.time), 0).UTC()); err != nil {
		return err
	}
	f.group.begun = data[12]&flagStandalone == 0 // MariaDB writes no BEGIN
	if data[12]&flagPrepared != 0 {
		f.beginPart()
	}
	return nil
}

// domain is the text of a domain's number, which is nearly always the same.
func domain(n uint32) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprint(n)
}

func (f *follower) gtid(raw []byte, h header, before change.Position) error {
	e, err := f.parser.Parse(raw)
	if err != nil {
		return fault.Corrupted("read a GTID of the log after %s: %v", f.at(), err)
	}
	var g *replication.GTIDEvent
	switch e := e.Event.(type) {
	case *replication.GTIDEvent:
		g = e
	case *replication.GtidTaggedLogEvent:
		g = &e.GTIDEvent
	default:
		return fault.Corrupted("the log's GTID after %s is something else", f.at())
	}
	var id gtid
	if h.typ != replication.ANONYMOUS_GTID_EVENT {
		id = gtid{origin: f.originOf(g.SID, g.Tag), n: uint64(g.GNO)}
	}
	when := time.Unix(int64(h.time), 0)
	if us := g.OriginalCommitTimestamp; us != 0 {
		when = time.UnixMicro(int64(us))
	}
	return f.open(before, id, when.UTC())
}

// originOf is the text of a server's UUID with the tag, if there is one: mostly that of
// the last transaction.
func (f *follower) originOf(sid []byte, tag string) string {
	text := string(appendUUID(make([]byte, 0, 36), sid))
	if tag != "" {
		text += ":" + tag
	}
	return text
}

// commit ends the open group.
func (f *follower) commit() error {
	if !f.group.open {
		return fault.Corrupted("the log commits a transaction at %s that it has not begun", f.at())
	}
	f.group = group{}
	if f.current.n != 0 {
		f.set.add(f.current.origin, f.current.server, f.current.n)
		f.passed(f.current)
	}
	f.text = ""
	if f.build.Ordinal == 0 {
		f.build.Commit(f.position(), "")
		return nil
	}
	f.build.Commit(f.position(), f.resume())
	return nil
}

// undo ends the open group without its changes.
func (f *follower) undo(n uint64) error {
	if !f.build.Back(n) {
		return fault.Refuse("raise source.max_transaction_bytes above the size of that transaction and start again: it is read anew from the mark",
			"the log takes back a part of a transaction at %s that was handed on already", f.at())
	}
	return nil
}

// gtidList takes the list at the beginning of one of MariaDB's files: the newest
// transactions of each domain and server before it, those of a domain in their order.
func (f *follower) gtidList(data []byte) error {
	if !f.unknown {
		return nil
	}
	bad := func() error {
		return fault.Corrupted("the list of GTIDs at the beginning of log file %s cannot be read", f.file)
	}
	if len(data) < 4 {
		return bad()
	}
	n := int(binary.LittleEndian.Uint32(data) & (1<<28 - 1))
	data = data[4:]
	if len(data) < 16*n {
		return bad()
	}
	f.set = gtids{mariaDB: true}
	for ; n > 0; n-- {
		f.set.add(domain(binary.LittleEndian.Uint32(data)), binary.LittleEndian.Uint32(data[4:]), binary.LittleEndian.Uint64(data[8:]))
		data = data[16:]
	}
	f.unknown, f.text = false, ""
	return nil
}

func (f *follower) rotate(data []byte, h header) error {
	if len(data) < 8 {
		return fault.Corrupted("the log has a rotation of %d bytes after %s", len(data), f.at())
	}
	name := strings.TrimRight(string(data[8:]), "\x00")
	artificial := h.next == 0 || h.flags&flagArtificial != 0
	if artificial && name == f.file { // where the stream begins
		return nil
	}
	base, n, err := numberOf(name)
	if err != nil {
		return err
	}
	was, _, err := numberOf(f.file)
	switch {
	case err != nil:
		return err
	case base != was:
		return fault.Refuse("set log_bin of the source back to what it was; or `tailrace run --overwrite` copies everything again", "the log goes on in file %s after %s: log_bin was changed", name, f.file)
	case n < f.number:
		return setBack(f.from, fmt.Sprintf("the log goes on in file %s after %s", name, f.file))
	case f.group.open && f.build.Cut:
		return fault.Retry(nil, "the log file %s ends inside a transaction: the source has crashed", f.file)
	case n == f.number:
		return nil
	}
	if f.group.open { // the source crashed while it wrote it: it was never committed
		f.group, f.build.Open = group{}, false
		if err := f.undo(0); err != nil {
			return err
		}
	}
	f.file, f.number, f.offset, f.created, f.text = name, n, 4, 0, "" // its description comes next
	f.layouts.forget()
	return nil
}

// newFile takes the description that stands at the beginning of a file. Its time tells
// that file from another of the same name, made after RESET MASTER.
func (f *follower) newFile(raw []byte, h header) error {
	described, err := readDescription(f.parser, raw)
	if err != nil {
		return err
	}
	f.sums = described.ChecksumAlgorithm == replication.BINLOG_CHECKSUM_ALG_CRC32
	// Checksums are taken off before events are parsed.
	described.ChecksumAlgorithm = replication.BINLOG_CHECKSUM_ALG_OFF
	f.created, f.text = h.time, ""
	if !f.checked {
		f.checked = true
		if f.mark.created != 0 && f.mark.file == f.file && f.mark.created != f.created {
			return setBack(f.from, fmt.Sprintf("log file %s was begun at %s, that of the mark at %s", f.file,
				time.Unix(int64(f.created), 0).UTC().Format(time.DateTime), time.Unix(int64(f.mark.created), 0).UTC().Format(time.DateTime)))
		}
	}
	f.layouts.forget()
	return nil
}

// readDescription reads the description of a file, by which the parser reads its events.
func readDescription(p *replication.BinlogParser, raw []byte) (*replication.FormatDescriptionEvent, error) {
	e, err := p.Parse(bytes.Clone(raw))
	if err != nil {
		return nil, fault.Corrupted("read the description of a log file: %v", err)
	}
	described, ok := e.Event.(*replication.FormatDescriptionEvent)
	if !ok {
		return nil, fault.Corrupted("the description of a log file is something else")
	}
	return described, nil
}

var payloadDecoder, payloadDecoderErr = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))

// payload takes a compressed transaction.
func (f *follower) payload(data []byte) error {
	return f.unpack(data, func(raw []byte) error { return f.take(raw, true) })
}

// unpack gives each event of a compressed transaction: fields of type, length and value,
// then the events, compressed together (codecs/binary.cpp of MySQL's source).
func (f *follower) unpack(data []byte, take func(raw []byte) error) error {
	const (
		end         = 0
		compression = 2
		zstandard   = 0
		none        = 255
	)
	if payloadDecoderErr != nil {
		return payloadDecoderErr
	}
	method := uint64(zstandard)
	for {
		typ, n, ok := lengthEncoded(data)
		if !ok {
			return fault.Corrupted("the log has a compressed transaction at %s that cannot be read", f.at())
		}
		data = data[n:]
		if typ == end {
			break
		}
		size, n, ok := lengthEncoded(data)
		if !ok || uint64(len(data)-n) < size {
			return fault.Corrupted("the log has a compressed transaction at %s that cannot be read", f.at())
		}
		if typ == compression {
			if method, _, ok = lengthEncoded(data[n:]); !ok {
				return fault.Corrupted("the log has a compressed transaction at %s that cannot be read", f.at())
			}
		}
		data = data[n+int(size):]
	}
	switch method {
	case none:
	case zstandard:
		var err error
		if data, err = payloadDecoder.DecodeAll(data, nil); err != nil {
			return fault.Corrupted("decompress the transaction at %s: %v", f.at(), err)
		}
	default:
		return fault.Corrupted("the transaction at %s is compressed in an unknown way (%d)", f.at(), method)
	}
	for len(data) > 0 {
		if len(data) < headerBytes {
			return fault.Corrupted("the compressed transaction at %s ends inside an event", f.at())
		}
		size := binary.LittleEndian.Uint32(data[9:])
		if size < headerBytes || uint64(size) > uint64(len(data)) {
			return fault.Corrupted("the compressed transaction at %s ends inside an event", f.at())
		}
		if err := take(data[:size]); err != nil {
			return err
		}
		data = data[size:]
	}
	return nil
}

// lengthEncoded reads the protocol's integers of one to nine bytes.
func lengthEncoded(data []byte) (v uint64, n int, ok bool) {
	if len(data) == 0 {
		return 0, 0, false
	}
	size := 0
	switch data[0] {
	case 0xfc:
		size = 2
	case 0xfd:
		size = 3
	case 0xfe:
		size = 8
	case 0xfb, 0xff:
		return 0, 0, false
	default:
		return uint64(data[0]), 1, true
	}
	if len(data) < 1+size {
		return 0, 0, false
	}
	return uintAt(data[1:], size), 1 + size, true
}

// partial refuses updates that hold parts of documents, of followed tables.
func (f *follower) partial(data []byte) error {
	if len(data) < 6 {
		return fault.Corrupted("the log has an update of %d bytes after %s", len(data), f.at())
	}
	if l, _ := f.layouts.find(uintAt(data, 6)); l == nil || l.table == nil {
		return nil
	}
	return fault.Refuse("SET GLOBAL binlog_row_value_options = '' on the source, end the sessions that have set it, then `tailrace run --overwrite`",
		"the log holds parts of documents (binlog_row_value_options = PARTIAL_JSON) at %s, set in a session of the source", f.at())
}
