package pipeline

import "tailrace/internal/change"

// meeting is the place in the log at which the stream of a copy beside the main one
// stops. It is named once, while both read on: the stream that gets there ends at
// exactly that position, and one that is beyond it already ends between two
// transactions, where it is.
type meeting struct {
	at    Gauge
	asked chan struct{} // closed when at is set
}

func newMeeting() *meeting { return &meeting{asked: make(chan struct{})} }

// ask names the place. It is called once.
func (m *meeting) ask(at change.Position) {
	m.at.Set(at)
	close(m.asked)
}

// meets reports whether the stream of a copy is where it is to stop.
func (f *follower) meets() bool {
	if f.meeting == nil || f.open {
		return false
	}
	if f.until.position.IsZero() {
		f.until.position = f.meeting.at.Get()
	}
	return f.reached()
}

// asked is closed when the place has been named and not been heard of yet.
func (f *follower) asked() <-chan struct{} {
	if f.meeting == nil || !f.until.position.IsZero() || f.open {
		return nil
	}
	return f.meeting.asked
}
