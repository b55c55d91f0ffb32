package mysql

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"tailrace/internal/change"
	"tailrace/internal/change/segment"
	"tailrace/internal/fault"
	"tailrace/source"
)

// quietEvery limits marks that are made for quiet points alone.
const quietEvery = time.Second

// backlogPause is how long more is waited for, where more seemed to be there, before what
// is complete is handed on all the same.
const backlogPause = 5 * time.Millisecond

// follower reads one stream of the log.
//
// The binlog library receives and frames; what an event holds is read here, from its raw
// bytes, so that a row is written once, from the packet into the memory of its segment.
// Everything happens in the library's one goroutine, one event after the other: while
// the caller takes no more, nothing is read, and the server waits. Whatever is complete
// when the socket has no more is handed on.
type follower struct {
	source *Source
	out    func(context.Context, *change.Segment) error
	ctx    context.Context // the stream's: the library calls back without one
	parser *replication.BinlogParser
	facts  *server
	failed error // the first error of ours: the library wraps it

	from    change.Position
	mark    resume // what the mark remembers; empty file: nothing
	checked bool   // the file that the mark was made in is that one

	file    string // name of the file that is read
	number  uint32
	offset  uint64 // the end of the newest event of it
	created uint32 // when it was begun
	sums    bool   // its events end with a checksum
	ahead   uint64 // events up to this offset are passed over unseen; 0: none
	set     gtids  // transactions before offset
	unknown bool   // set is: the next file tells it, of MariaDB
	held    gtids  // transactions that the destination has, wherever they are in the log
	current gtid   // the open transaction's
	text    string // the resume position at the newest commit or quiet point; empty: to be made

	group   group
	layouts layouts
	arena   arena
	build   segment.Builder
	saved   []savepoint

	prepared firstParts

	quietAt time.Time // when a quiet point was last handed on alone
	backlog bool      // more is there already
}

// gtid is one transaction's identifier; n is 0 for none.
type gtid struct {
	origin string
	server uint32
	n      uint64
}

// group is the open group of events, which is a transaction or one statement.
type group struct {
	open  bool
	begun bool   // BEGIN was seen: COMMIT, ROLLBACK or XID will come. Otherwise one statement ends it
	had   bool   // the destination has it already: what it holds is passed over
	at    uint64 // where it begins

	xa   bool // the first part of a distributed transaction: what it holds is kept back
	part part
	kept int // bytes of part
}

// savepoint is a place inside the open transaction.
type savepoint struct {
	name string
	at   uint64
}

// Follow implements source.Source.
func (s *Source) Follow(ctx context.Context, from change.Position, o source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	f := &follower{source: s, ctx: ctx, out: out, from: from, parser: replication.NewBinlogParser()}
	err := f.follow(ctx, o)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("follow the binary log: %w", err)
}

func (f *follower) follow(ctx context.Context, o source.FollowOptions) (err error) {
	s := f.source
	if f.facts, err = s.readServer(ctx); err != nil {
		return err
	}
	if err := s.sameServer(f.facts.identity); err != nil {
		return err
	}
	if err := f.facts.refusal(); err != nil {
		return err
	}
	if err := s.readCollations(ctx); err != nil {
		return err
	}
	s.forgetCatalog()
	if err := f.begin(ctx, o.Resume); err != nil {
		return err
	}
	f.layouts.forget()
	f.build.PieceBytes = int(min(o.PieceBytes, 1<<40))
	if f.build.PieceBytes <= 0 {
		f.build.PieceBytes = segment.DefaultPiece
	}
	f.build.End = f.from
	return f.stream(ctx)
}

// begin finds the file of the position in the log, and checks that it is the one that the
// mark was made in.
func (f *follower) begin(ctx context.Context, text string) error {
	s := f.source
	if text != "" {
		var err error
		if f.mark, err = parseResume(text); err != nil {
			return fault.Corrupted("read the mark's place in the log: %v", err)
		}
	}
	files, err := s.logFiles(ctx)
	if err != nil {
		return err
	}
	const again = "`tailrace run --overwrite` copies everything again; then keep the log longer on the source (binlog_expire_logs_seconds), or keep tailrace running"
	var file *logFile
	for i := range files {
		_, n, err := numberOf(files[i].name)
		if err != nil {
			return err
		}
		if n == f.from.File {
			file = &files[i]
		}
	}
	_, oldest, err := numberOf(files[0].name)
	switch {
	case err != nil:
		return err
	case file == nil && f.from.File < oldest:
		return fault.Refuse(again, "the log files from number %d to %d were purged: the changes since the mark at %s are gone; the oldest file is %s", f.from.File, oldest-1, f.from, files[0].name)
	case file == nil:
		return setBack(f.from, "the newest log file is "+files[len(files)-1].name)
	case f.mark.file != "" && f.mark.file != file.name:
		return fault.Refuse("set log_bin of the source back to what it was; or "+again, "the log file of the mark is %s, the server's is %s: log_bin was changed, or it is another server", f.mark.file, file.name)
	case uint64(file.size) < f.from.Offset:
		return setBack(f.from, fmt.Sprintf("log file %s has %d bytes", file.name, file.size))
	}
	if f.facts.mariaDB {
		if err := f.checkMariaDB(ctx, file.name); err != nil {
			return err
		}
	} else if f.mark.gtids != "" {
		var contained bool
		if err := s.db.QueryRowContext(ctx, "SELECT gtid_subset(?, @@global.gtid_executed)", f.mark.gtids).Scan(&contained); err != nil {
			return s.explain(err, "compare the mark's GTIDs with the server's")
		}
		if !contained {
			return setBack(f.from, "it has not executed all GTIDs of the mark")
		}
	}
	f.file, f.number, f.offset = file.name, f.from.File, f.from.Offset
	if f.offset > positionEnds {
		f.offset, f.ahead = fileBegin, f.offset
	}
	f.unknown = text == ""
	if f.facts.mariaDB { // it was asked, and can tell of most places
		f.unknown = f.mark.gtids == "" && (f.from.Offset == fileBegin || f.from.Offset > positionEnds)
	}
	set, err1 := parseGTIDs(f.facts.mariaDB, f.mark.gtids)
	held, err2 := parseGTIDs(f.facts.mariaDB, f.mark.held)
	if err := errors.Join(err1, err2); err != nil {
		return fault.Corrupted("read the mark's GTIDs: %v", err)
	}
	f.set, f.held = set, held
	f.settle()
	return nil
}

// checkMariaDB compares the GTIDs of the mark with those that the server has at its place.
func (f *follower) checkMariaDB(ctx context.Context, file string) error {
	now, err := f.source.gtidsAt(ctx, f.source.db, file, f.from.Offset)
	if err != nil {
		return err
	}
	switch {
	case now == "": // before the list that stands at the beginning of the file, or it cannot tell
		return nil
	case f.mark.gtids == "":
		f.mark.gtids = now
		return nil
	}
	a, err1 := parseGTIDs(true, now)
	b, err2 := parseGTIDs(true, f.mark.gtids)
	if err := errors.Join(err1, err2); err != nil {
		return fault.Corrupted("compare the mark's GTIDs with the server's: %v", err)
	}
	if a.String() != b.String() {
		return setBack(f.from, fmt.Sprintf("before that place it has GTIDs %q, the mark has %q", now, f.mark.gtids))
	}
	return nil
}

// setBack refuses a server whose log does not hold what the destination has.
func setBack(mark change.Position, why string) error {
	return fault.Refuse("the destination may hold transactions that the source has lost (restored, RESET MASTER, failed over to a server that was behind, or a crash without sync_binlog = 1): `tailrace run --overwrite` copies everything again",
		"the mark is at %s, but %s: the source's log is not the one that was followed", mark, why)
}

// refusal names what makes the log unreadable.
func (v *server) refusal() error {
	switch {
	case !v.logBin:
		return noLog()
	case v.format != "ROW":
		return fault.Refuse("SET GLOBAL binlog_format = 'ROW' (and in the server's configuration); sessions that are open keep their own until they end",
			"binlog_format of the source is %s: its log holds statements, not rows", v.format)
	case strings.Contains(v.partial, "PARTIAL_JSON"):
		return fault.Refuse("SET GLOBAL binlog_row_value_options = '' (and in the server's configuration)",
			"binlog_row_value_options of the source is %s: its log holds parts of documents", v.partial)
	}
	return nil
}

// HandleEvent takes one raw event; the library calls it.
func (f *follower) HandleEvent(e *replication.BinlogEvent) error {
	if f.failed != nil {
		return f.failed
	}
	if err := f.take(e.RawData, false); err != nil {
		f.failed = err
		var lost *source.TableLost
		if errors.As(err, &lost) { // what is before it counts
			if e := f.handOn(false); e != nil {
				f.failed = e
			}
		}
		return f.failed
	}
	return nil
}

// idle is called before the socket is waited for.
func (f *follower) idle(backlog bool) (time.Duration, error) {
	if f.failed != nil {
		return 0, f.failed
	}
	f.backlog = backlog
	if backlog && !f.build.Full() {
		return backlogPause, nil
	}
	if err := f.handOn(f.quietDue()); err != nil {
		f.failed = err
		return 0, err
	}
	if f.build.Quiet.IsZero() {
		return 0, nil
	}
	return max(quietEvery-time.Since(f.quietAt), time.Millisecond), nil
}

func (f *follower) quietDue() bool {
	return !f.build.Quiet.IsZero() && time.Since(f.quietAt) >= quietEvery
}

// handOn gives what is complete to the caller.
func (f *follower) handOn(quietAlone bool) error {
	seg := f.build.Take(quietAlone, f.resume())
	if seg == nil {
		return nil
	}
	if last := &seg.Txs[len(seg.Txs)-1]; last.XID == 0 && len(last.Changes) == 0 {
		f.quietAt = time.Now()
	}
	if f.backlog { // clocks differ, and some servers' commit times are whole seconds: this is certain
		seg.Age = time.Second
	}
	return f.out(f.ctx, seg)
}

// portion hands on what is complete if it is enough, or a piece.
func (f *follower) portion() error {
	if f.build.TooBig() {
		f.build.Piece()
	}
	if f.build.Full() || f.build.Partial() {
		return f.handOn(false)
	}
	return nil
}

// position is the end of the newest event.
func (f *follower) position() change.Position {
	return change.Position{Epoch: f.from.Epoch, File: f.number, Offset: f.offset}
}

// at names the position for an error.
func (f *follower) at() string { return fmt.Sprintf("%s:%d", f.file, f.offset) }

// resume is what the mark needs at the newest commit or quiet point.
func (f *follower) resume() string {
	if f.text == "" {
		r := resume{file: f.file, created: f.created, held: f.held.String()}
		if !f.unknown {
			r.gtids = f.set.String()
		}
		f.text = r.String()
	}
	return f.text
}

// header is the front of every event.
type header struct {
	time   uint32 // seconds since 1970
	typ    replication.EventType
	server uint32
	next   uint32 // where the next event begins, its lower 32 bits; 0: not known
	flags  uint16
}

func headerOf(raw []byte) header {
	return header{time: binary.LittleEndian.Uint32(raw), typ: replication.EventType(raw[4]), server: binary.LittleEndian.Uint32(raw[5:]),
		next: binary.LittleEndian.Uint32(raw[13:]), flags: binary.LittleEndian.Uint16(raw[17:])}
}

const (
	headerBytes    = 19
	flagArtificial = 0x20 // made by the server for us: not in the file
)

// take handles one event; inner is true inside a compressed transaction, whose events
// have no place of their own.
func (f *follower) take(raw []byte, inner bool) error {
	if len(raw) < headerBytes {
		return fault.Corrupted("the log has an event of %d bytes after %s", len(raw), f.at())
	}
	h := headerOf(raw)
	if f.sums && !inner && h.typ != replication.FORMAT_DESCRIPTION_EVENT {
		var err error
		if raw, err = f.withoutSum(raw); err != nil {
			return err
		}
	}
	before := f.position()
	if !inner && h.next != 0 && h.flags&flagArtificial == 0 && h.typ != replication.HEARTBEAT_EVENT && h.typ != replication.HEARTBEAT_LOG_EVENT_V2 {
		f.advance(h.next)
	}
	if f.ahead != 0 && h.flags&flagArtificial == 0 && h.typ != replication.FORMAT_DESCRIPTION_EVENT {
		if f.offset <= f.ahead {
			return nil
		}
		if before.Offset != f.ahead {
			return setBack(f.from, fmt.Sprintf("no event of log file %s ends there", f.file))
		}
		f.ahead = 0
	}
	if err := f.event(raw, h, before); err != nil {
		return err
	}
	if inner || f.group.open || f.build.Open {
		return f.portion()
	}
	if f.ahead != 0 {
		return nil
	}
	f.build.QuietAt(f.position())
	return f.portion()
}

// sumBytes is a CRC32 of everything before it.
const sumBytes = 4

// withoutSum checks an event's checksum and takes it off.
func (f *follower) withoutSum(raw []byte) ([]byte, error) {
	n := len(raw) - sumBytes
	if n < headerBytes || crc32.ChecksumIEEE(raw[:n]) != binary.LittleEndian.Uint32(raw[n:]) {
		return nil, fault.Corrupted("the checksum of the event after %s is wrong: the log is damaged, or was on its way", f.at())
	}
	binary.LittleEndian.PutUint32(raw[9:], uint32(n))
	return raw[:n:n], nil
}

// advance takes the lower half of where the newest event ends, which is all that events
// say. None is as long as 2 GB, so the upper half follows from it.
func (f *follower) advance(low uint32) { f.offset = advanced(f.offset, low) }

func advanced(from uint64, low uint32) uint64 {
	offset := from&^positionEnds | uint64(low)
	if offset < from && from-offset > 1<<31 {
		offset += 1 << 32
	}
	return max(from, offset)
}
