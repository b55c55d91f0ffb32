package postgres

import (
	"context"
	"errors"
	"fmt"

	"tailrace/internal/change"
	"tailrace/source"
)

var (
	_ source.Trailer = (*Source)(nil)
	_ source.Trail   = (*snapshot)(nil)
)

// Trail implements source.Trailer. The snapshot's temporary slot keeps the log from its
// position on; only the session that made it can read it, and it goes with that session.
func (s *Source) Trail(ctx context.Context, _ []change.Name) (source.Trail, error) {
	return s.export(ctx, temporarySlot(), true)
}

// Follow implements source.Trail. Transactions come after their commit: the spool for
// open ones is the stream's.
func (n *snapshot) Follow(ctx context.Context, o source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	n.mu.Lock()
	closed, idle := n.closed, n.idle
	n.closed, n.idle = true, nil
	n.mu.Unlock()
	if closed {
		return errors.New("the snapshot is closed")
	}
	for _, conn := range idle {
		closeSoon(conn)
	}
	s := n.source
	s.confirmed.Store(n.position.Offset)
	conn, timeout, err := s.readLog(ctx, n.holder, n.slot, n.position, false, o.Binary)
	if err != nil {
		return err
	}
	if _, err := s.newFollower(conn, nil, nil, timeout, n.position, o, out).follow(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("follow slot %s: %w", n.slot, err)
	}
	return nil
}

// Confirm implements source.Trail.
func (n *snapshot) Confirm(p change.Position) { n.source.Confirm(p) }
