package mysql

import (
	"context"
	"errors"
	"strconv"

	"tailrace/internal/change"
	"tailrace/source"
)

var (
	_ source.Trailer = (*Source)(nil)
	_ source.Trail   = (*snapshot)(nil)
)

// Trail implements source.Trailer. The server keeps its log for everybody, so a second
// reader of it costs nothing but its reading. It is known by a number of its own.
func (s *Source) Trail(ctx context.Context, tables []change.Name) (source.Trail, error) {
	s.cfg.ServerID = besideOf(s.cfg.ServerID)
	followed := make([]source.Followed, len(tables))
	for i, n := range tables {
		followed[i].Table = &change.Table{Name: n}
	}
	if err := s.Publish(ctx, followed); err != nil {
		return nil, err
	}
	n, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// besideOf makes a second number of the pipeline's: the same one at each start, so that
// the server ends a reader that a killed process has left.
func besideOf(id uint32) uint32 {
	return replicaNumber("beside " + strconv.FormatUint(uint64(id), 10))
}

// Follow implements source.Trail.
func (n *snapshot) Follow(ctx context.Context, o source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	if n.followed {
		return errClosed
	}
	n.followed = true
	for range n.all { // no session is at work
		<-n.sessions
	}
	close(n.sessions)
	if err := errors.Join(n.endSessions(), n.db.Close()); err != nil {
		n.source.log.Debug("the sessions of the copy could not be ended", "error", err.Error())
	}
	o.Resume = n.resume
	return n.source.Follow(ctx, n.position, o, out)
}

// Confirm implements source.Trail: the server holds nothing back for us.
func (n *snapshot) Confirm(change.Position) {}
