package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"tailrace/internal/change"
	"tailrace/internal/change/segment"
	"tailrace/internal/fault"
	"tailrace/internal/spool"
	"tailrace/source"
	"tailrace/source/postgres/pgoutput"
)

// quietEvery limits marks that are made for quiet points alone.
const quietEvery = time.Second

// follower reads one connection's log.
//
// It reads the socket itself, into large buffers whose memory the rows keep, and
// frames the protocol: what the driver does for each message would cost more than
// everything else. Whatever is complete when nothing more has been read is handed
// on, then the next read waits: at low load each transaction goes at once, under
// load segments grow by themselves. A quiet point (a keepalive outside a
// transaction that is further on than anything received, or a transaction that
// holds nothing for us) is handed on behind the transactions before it, or by
// itself at most once a second.
type follower struct {
	source  *Source
	conn    net.Conn
	window  *window
	status  *status
	layouts layouts
	build   segment.Builder
	streams streams
	report  *pgconn.PgError // the server's error that has ended the stream
	paced   *pacedConn      // nil: not paced
	out     func(context.Context, *change.Segment) error

	received atomic.Uint64
	message  pgoutput.Message

	sent      int64     // the server's clock at the newest message of this read, µs since 2000; 0: none
	committed int64     // its transaction's commit time
	quietAt   time.Time // when a quiet point was last handed on alone
	urgent    bool      // the next quiet point may not wait: the server wants an answer, or a backlog has ended
	silence   time.Duration
}

// Follow implements source.Source. It returns the context's error when that ends,
// after telling the server what is confirmed.
func (s *Source) Follow(ctx context.Context, from change.Position, o source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	streaming := s.cfg.Streaming
	for {
		reached, cannotStream, err := s.follow(ctx, from, streaming, o, out)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case cannotStream:
			s.log.Warn("the server cannot send a transaction while it is open: from here on each is read after its commit, until the next start", "position", reached, "error", err)
			from, streaming = reached, false
		default:
			return fmt.Errorf("follow slot %s: %w", s.names.slot, err)
		}
	}
}

// follow also returns how far it has handed on the log, and whether to read on from
// there without streaming.
func (s *Source) follow(ctx context.Context, from change.Position, streaming bool, o source.FollowOptions, out func(context.Context, *change.Segment) error) (reached change.Position, cannotStream bool, err error) {
	distance, err := s.checkSlot(ctx, from)
	if err != nil {
		return from, false, err
	}
	var spooled *spool.Spool
	if streaming {
		if spooled, err = s.openSpool(); err != nil {
			return from, false, err
		}
		defer func() {
			if e := spooled.Close(); e != nil {
				s.log.Warn("the spool of open transactions cannot be closed", "error", e)
			}
			if o.Spooled != nil {
				o.Spooled(0)
			}
		}()
	}
	conn, paced, timeout, err := s.startReplication(ctx, from, streaming, o.Binary, distance)
	if err != nil {
		return from, false, err
	}
	f := s.newFollower(conn, paced, spooled, timeout, from, o, out)
	sent, err := f.follow(ctx)
	if !sent {
		return from, false, err
	}
	return change.LSN(f.received.Load()), streaming && f.cannotStream(), s.explainStream(ctx, err)
}

// newFollower makes the reader of a stream that has begun. paced and spooled may be nil.
func (s *Source) newFollower(conn net.Conn, paced *pacedConn, spooled *spool.Spool, timeout time.Duration, from change.Position, o source.FollowOptions, out func(context.Context, *change.Segment) error) *follower {
	f := &follower{source: s, conn: conn, window: newWindow(conn), out: out,
		layouts: layouts{known: map[uint32]*layout{}, names: map[uint32]string{}},
		streams: streams{spool: spooled, told: o.Spooled},
		paced:   paced,
		silence: min(max(s.silence, 2*timeout), 5*time.Minute),
	}
	f.build.PieceBytes = int(min(o.PieceBytes, 1<<40))
	if f.build.PieceBytes <= 0 {
		f.build.PieceBytes = segment.DefaultPiece
	}
	f.build.End = from
	f.received.Store(from.Offset)
	f.status = &status{conn: conn, received: &f.received, confirmed: &s.confirmed, moved: s.confirmNow,
		asked: make(chan struct{}, 1), every: statusEvery(timeout)}
	return f
}

// follow reads until ctx ends or an error, and takes leave. sent is false if the status
// could not be sent: how far the stream was taken does not count then.
func (f *follower) follow(ctx context.Context) (sent bool, err error) {
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		err := f.status.run(stop)
		if err != nil {
			f.conn.Close() // the reader must not wait for what cannot come
		}
		stopped <- err
	}()
	interrupted := make(chan struct{})
	interrupt := context.AfterFunc(ctx, func() {
		f.conn.SetReadDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	err = f.run(ctx)
	if !interrupt() {
		<-interrupted // or it would cut the farewell short
	}
	close(stop)
	if e := <-stopped; e != nil {
		f.conn.Close()
		return false, fmt.Errorf("send the status: %w", e)
	}
	f.farewell()
	return true, err
}

// checkSlot refuses a slot that cannot give everything from the position on, and
// takes over what it has confirmed. It returns how far away the server is.
func (s *Source) checkSlot(ctx context.Context, from change.Position) (distance time.Duration, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		slot, err := s.readSlot(ctx, conn)
		if err != nil {
			return err
		}
		if err := slot.refusal(); err != nil {
			return err
		}
		if from.Before(slot.Confirmed) {
			return fault.Refuse("`tailrace run --overwrite` copies everything again from a new slot",
				"the slot is at %s, the destination at %s: the changes in between are gone (another consumer moved the slot, or the destination is older than it was)",
				slot.Confirmed, from)
		}
		var end string
		if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
			return fmt.Errorf("read the end of the log: %w", err)
		}
		head, err := change.ParsePosition(end)
		if err != nil {
			return err
		}
		if head.Before(from) {
			return fault.Refuse("run `tailrace resync`, which copies the tables again from a new slot",
				"the destination is at %s, but the source's log ends at %s: the source has lost work (restored, or failed over to a standby that was behind)", from, head)
		}
		// What was confirmed in an earlier run but not heard holds, as far as this one
		// goes on from there.
		s.confirmed.Store(max(slot.Confirmed.Offset, min(s.confirmed.Load(), from.Offset)))
		distance = time.Hour
		for range 3 {
			begin := time.Now()
			if err := conn.Ping(ctx); err != nil {
				return err
			}
			distance = min(distance, time.Since(begin))
		}
		return nil
	})
	return distance, err
}

// startReplication begins the stream and returns its connection, the paced socket
// below it, if it is, and the server's patience with a silent client.
func (s *Source) startReplication(ctx context.Context, from change.Position, streaming, binary bool, distance time.Duration) (net.Conn, *pacedConn, time.Duration, error) {
	var paced *pacedConn
	var wrap func(net.Conn) net.Conn
	if canPace && distance <= nearby && !s.eager {
		wrap = func(conn net.Conn) net.Conn {
			paced = &pacedConn{Conn: conn}
			return paced
		}
	}
	pg, err := s.connectLog(ctx, wrap)
	if err != nil {
		return nil, nil, 0, err
	}
	conn, timeout, err := s.readLog(ctx, pg, s.names.slot, from, streaming, binary)
	return conn, paced, timeout, err
}

// readLog has a session of the replication protocol read a slot, and takes its socket
// over. On an error the session is closed.
func (s *Source) readLog(ctx context.Context, pg *pgconn.PgConn, slot string, from change.Position, streaming, binary bool) (net.Conn, time.Duration, error) {
	result, err := pg.Exec(ctx, "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'").ReadAll()
	if err == nil && (len(result) != 1 || len(result[0].Rows) != 1) {
		err = errors.New("no such setting")
	}
	if err != nil {
		closeSoon(pg)
		return nil, 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	ms, err := strconv.Atoi(string(result[0].Rows[0][0]))
	if err == nil {
		err = pg.SyncConn(ctx)
	}
	if err != nil {
		closeSoon(pg)
		return nil, 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	// Taken over while idle, the driver holds no byte of ours back.
	hijacked, err := pg.Hijack()
	if err != nil {
		closeSoon(pg)
		return nil, 0, fmt.Errorf("take over the connection: %w", err)
	}
	protocol := "proto_version '1'"
	if streaming {
		protocol = "proto_version '2', streaming 'on'"
	}
	command := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (%s, publication_names %s",
		ident(slot), from, protocol, literal(publicationList(s.names.publications())))
	if binary {
		command += ", binary 'true'"
	}
	query, err := (&pgproto3.Query{String: command + ")"}).Encode(nil)
	if err == nil {
		hijacked.Conn.SetWriteDeadline(time.Now().Add(writePatience))
		_, err = hijacked.Conn.Write(query)
	}
	if err != nil {
		hijacked.Conn.Close()
		return nil, 0, fmt.Errorf("start replication: %w", err)
	}
	return hijacked.Conn, time.Duration(ms) * time.Millisecond, nil
}

// explainStream gives the server's errors in the stream their remedies.
func (s *Source) explainStream(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	switch {
	case isState(err, "42704"): // undefined object: a publication, as of the change being decoded
		state, e := s.State(ctx)
		switch {
		case e != nil:
			return err
		case len(state.PublicationsMissing) > 0:
			return s.missingRefusal(state.PublicationsMissing)
		default:
			return s.newerRefusal()
		}
	case isState(err, "55000", "58P01"): // not in prerequisite state; file gone
		var refusal error
		e := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			slot, e := s.readSlot(ctx, conn)
			refusal = slot.refusal()
			return e
		})
		if e == nil && refusal != nil {
			return refusal
		}
	case isState(err, "55006"): // object in use
		return fault.Retry(err, "another session still holds the slot")
	}
	return err
}

func (s *Source) missingRefusal(missing []string) error {
	return fault.Refuse("`tailrace run --overwrite` makes publications and slot anew and copies everything again: "+
		"a publication made now is newer than what the slot still has to deliver",
		"publications are gone from the source: %v", missing)
}

// run reads until the context ends or something fails.
func (f *follower) run(ctx context.Context) error {
	for {
		for {
			kind, body, err := f.window.next()
			if err == errMore {
				break
			}
			if err != nil {
				return err
			}
			if err := f.take(ctx, kind, body); err != nil {
				return err
			}
			if err := f.portion(ctx); err != nil {
				return err
			}
		}
		if err := f.handOn(ctx, f.quietDue()); err != nil {
			return err
		}
		if f.paced != nil {
			f.paced.age = f.age()
			if f.streams.xid != 0 { // nobody waits for these rows yet
				f.paced.age = max(f.paced.age, behind)
			}
		}
		if err := f.read(ctx); err != nil {
			return err
		}
	}
}

// portion cuts an open transaction that is too large, and hands on what is
// complete if it is enough or a piece.
func (f *follower) portion(ctx context.Context) error {
	if f.build.TooBig() {
		f.build.Piece()
	}
	if f.build.Full() || f.build.Partial() {
		return f.handOn(ctx, false)
	}
	return nil
}

// age is how long ago, by the server's clock, the newest transaction seen in this
// read had committed when it was sent.
func (f *follower) age() time.Duration {
	if f.sent == 0 || f.committed == 0 {
		return 0
	}
	return time.Duration(f.sent-f.committed) * time.Microsecond
}

func (f *follower) quietDue() bool {
	return !f.build.Quiet.IsZero() && (f.urgent || time.Since(f.quietAt) >= quietEvery)
}

// handOn gives what is complete to the caller.
func (f *follower) handOn(ctx context.Context, quietAlone bool) error {
	seg := f.build.Take(quietAlone, "")
	if seg == nil {
		return nil
	}
	if len(seg.Txs) == 1 && len(seg.Txs[0].Changes) == 0 && seg.Txs[0].XID == 0 {
		f.quietAt, f.urgent = time.Now(), false
	}
	seg.Age = f.age()
	f.received.Store(max(f.received.Load(), f.build.End.Offset))
	return f.out(ctx, seg)
}

// read waits for more. A quiet point that becomes due meanwhile is handed on. If
// nothing comes for half the allowed silence, the server is asked for a sign of
// life; if nothing comes for the other half, it is gone.
func (f *follower) read(ctx context.Context) error {
	asked := false
	for {
		wait := f.silence / 2
		quiet := !f.build.Quiet.IsZero()
		if quiet {
			wait = min(wait, max(quietEvery-time.Since(f.quietAt), time.Millisecond))
		}
		f.conn.SetReadDeadline(time.Now().Add(wait))
		if ctx.Err() != nil { // after the deadline was set: the interrupt sets a later one
			return ctx.Err()
		}
		err := f.window.fill()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			if errors.Is(err, io.EOF) {
				return fault.Retry(io.ErrUnexpectedEOF, "the server closed the connection")
			}
			return fmt.Errorf("read the log: %w", err)
		case ctx.Err() != nil:
			return ctx.Err()
		case quiet:
			if err := f.handOn(ctx, true); err != nil {
				return err
			}
		case asked:
			return fault.Retry(nil, "the server has been silent for %v and did not answer: the connection counts as dead", f.silence)
		default:
			asked = true
			f.status.ping.Store(true)
			f.status.answer()
		}
	}
}

// take handles one protocol message.
func (f *follower) take(ctx context.Context, kind byte, body []byte) error {
	switch kind {
	case 'd': // CopyData
		return f.copyData(ctx, body)
	case 'W', 'S', 'A', 'K': // CopyBothResponse; reports that do not concern the log
		return nil
	case 'E', 'N':
		var r pgproto3.ErrorResponse
		if err := r.Decode(body); err != nil {
			return fault.Corrupted("an error report of the server cannot be read: %v", err)
		}
		report := pgconn.ErrorResponseToPgError(&r)
		if kind == 'E' {
			f.report = report
			return report
		}
		if skippedPublication(report, f.source.names.publications()) {
			return f.source.newerRefusal()
		}
		return nil
	case 'c', 'C', 'Z': // CopyDone, CommandComplete, ReadyForQuery
		return fault.Retry(nil, "the server has ended the stream")
	}
	return fault.Corrupted("the server sent a message of unknown kind %q in the stream", kind)
}

func (f *follower) copyData(ctx context.Context, body []byte) error {
	if len(body) == 0 {
		return fault.Corrupted("the log has an empty message")
	}
	switch body[0] {
	case pglogrepl.XLogDataByteID: // start, end, the server's clock, then the plugin's message
		if len(body) < 25 {
			return fault.Corrupted("the log has a message of %d bytes", len(body))
		}
		if f.streams.xid == 0 {
			f.sent = int64(binary.BigEndian.Uint64(body[17:]))
		}
		return f.logMessage(ctx, body[25:])
	case pglogrepl.PrimaryKeepaliveMessageByteID: // end, the server's clock, whether to answer
		if len(body) != 18 {
			return fault.Corrupted("the log has a keepalive of %d bytes", len(body))
		}
		if !f.build.Open && f.streams.xid == 0 {
			f.build.QuietAt(change.LSN(binary.BigEndian.Uint64(body[1:])))
			if f.age() >= behind {
				f.urgent = true // what is gathered of the backlog need not wait for more
			}
			f.sent, f.committed = 0, 0 // the server has caught up
		}
		if body[17] != 0 {
			f.urgent = true
			f.status.answer()
		}
		return nil
	}
	return fault.Corrupted("the log has a message of unknown kind %q", body[0])
}

// logMessage takes one message of the plugin.
func (f *follower) logMessage(ctx context.Context, data []byte) error {
	if f.streams.xid != 0 && (len(data) == 0 || pgoutput.Kind(data[0]) != pgoutput.StreamStop) {
		return f.spoolMessage(data)
	}
	m := &f.message
	if err := f.parse(data); err != nil {
		return err
	}
	b := &f.build
	switch m.Kind {
	case pgoutput.Begin:
		if b.Open {
			return fault.Corrupted("the log begins transaction %d inside transaction %d", m.XID, b.Current.XID)
		}
		b.Begin(change.LSN(m.LSN), m.XID, pgoutput.Instant(m.Time))
		f.committed = m.Time
	case pgoutput.Commit:
		if !b.Open || m.LSN != b.Current.Begin.Offset || m.End <= m.LSN {
			return fault.Corrupted("the log commits transaction %d at %s, but it began for a commit at %s", b.Current.XID, change.LSN(m.LSN), b.Current.Begin)
		}
		b.Commit(change.LSN(m.End), "")
		f.committed = m.Time
	case pgoutput.StreamStart, pgoutput.StreamStop, pgoutput.StreamCommit, pgoutput.StreamAbort:
		return f.stream(ctx)
	default:
		if m.Kind == pgoutput.Relation {
			f.layouts.arrivals++
		}
		return f.content(ctx, data, f.layouts.arrivals)
	}
	return nil
}

func (f *follower) parse(data []byte) error {
	if err := pgoutput.Parse(data, &f.message); err != nil {
		return fault.Corrupted("read the log after %s: %v", f.build.End, err)
	}
	return nil
}

// content takes the parsed message data of the open transaction; arrival is the
// number of a Relation message.
func (f *follower) content(ctx context.Context, data []byte, arrival uint64) error {
	m, b := &f.message, &f.build
	if !b.Open && m.Kind != pgoutput.Logical {
		return fault.Corrupted("the log has a message of kind %q outside a transaction after %s", m.Kind, b.End)
	}
	switch m.Kind {
	case pgoutput.Insert, pgoutput.Update, pgoutput.Delete:
		t, err := f.layouts.find(m)
		if err != nil {
			return err
		}
		row := m.New
		if m.Kind == pgoutput.Update && m.Old != nil && !m.OldIsKey && row.HasAbsent(m.NewCols) {
			row = complete(row, m.Old)
		}
		b.Add(change.Change{Op: change.Op(m.Kind), OldIsKey: m.OldIsKey, Table: t, Old: m.Old, New: row}, len(data)+frameBytes)
	case pgoutput.Relation:
		return f.describe(ctx, data, &m.Layout, arrival)
	case pgoutput.Type:
		f.layouts.names[m.TypeID] = ident(m.Schema) + "." + ident(m.Name)
	case pgoutput.Truncate:
		for _, id := range m.Rels {
			known := f.layouts.known[id]
			if known == nil {
				return fault.Corrupted("the log truncates relation %d without having described it", id)
			}
			b.Add(change.Change{Op: change.Truncate, Table: known.table}, 0)
		}
	}
	return nil
}

// farewell tells the server what is confirmed and ends the stream in order, within
// a second, so that the slot stands where the mark stands. It is best effort: the
// destination's mark decides.
func (f *follower) farewell() {
	defer f.conn.Close()
	deadline := time.Now().Add(time.Second)
	f.conn.SetDeadline(deadline)
	copyDone := []byte{'c', 0, 0, 0, 4}
	if _, err := f.conn.Write(append(f.status.message(), copyDone...)); err != nil {
		return
	}
	// The server reads what we say while its own sending waits, so a stream that
	// still flows is drained slowly.
	for time.Now().Before(deadline) {
		kind, _, err := f.window.next()
		switch {
		case err == errMore:
			if f.window.fill() != nil {
				return
			}
			if f.window.found >= receiveBuffer {
				time.Sleep(pauseMost)
			}
		case err != nil:
			return
		case kind == 'Z':
			f.conn.Write([]byte{'X', 0, 0, 0, 4})
			return
		case kind == 'E':
			return
		}
	}
}
