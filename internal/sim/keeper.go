package sim

import (
	"context"
	"errors"
	"time"

	"tailrace/internal/change"
	"tailrace/source"
)

// Keep makes the keep slot, or moves it on. It implements source.Keeper.
func (s *Source) Keep(_ context.Context, p change.Position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Faults.hit("keep"); err != nil {
		return err
	}
	if s.keep == 0 && p.Offset < s.confirmed {
		return errors.New("kept from in front of the live slot")
	}
	s.keep = max(s.keep, p.Offset)
	s.prune()
	return s.Faults.after("keep")
}

func (s *Source) Kept(context.Context) (source.Kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := source.Kept{Name: "keep", Exists: s.keep != 0, From: change.LSN(s.keep)}
	if k.Exists {
		k.Bytes = int64(s.head - s.keep)
	}
	return k, s.Faults.hit("kept")
}

// Return drops the live slot and makes it anew, which are two steps of the server.
func (s *Source) Return(_ context.Context, p change.Position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.slot && s.confirmed <= p.Offset:
		return nil
	case s.keep == 0 || p.Offset < s.keep:
		return errors.New("returned to where nothing is kept")
	}
	if err := s.Faults.hit("return"); err != nil {
		return err
	}
	s.slot = false
	if err := s.Faults.hit("return half done"); err != nil {
		return err
	}
	s.slot, s.confirmed, s.pending = true, s.keep, 0
	return s.Faults.after("return")
}

func (s *Source) Unkeep(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = 0
	s.prune()
	return s.Faults.hit("unkeep")
}

// LoseKeepSlot is somebody dropping it.
func (s *Server) LoseKeepSlot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = 0
	s.prune()
}

func (s *Source) CheckKeep(context.Context, time.Duration) ([]source.Finding, error) { return nil, nil }
