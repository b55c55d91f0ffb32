package pipeline

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

const (
	// feedsEvery is how often feeds are looked at: for changes that became too old, as
	// often as a batch does that writes one, and for their sizes.
	feedsEvery = time.Minute
	// trimsOnce is how many steps a run that ends does for a feed: a million changes. More
	// is left for the next one.
	trimsOnce = 100
)

// trimmer removes old changes of targets' feeds between batches, a bounded step each.
// Batches do so too, but only of the targets that they write.
type trimmer struct {
	feeds   sink.Feeds // nil: nothing to do
	targets []*scd.Target
	every   time.Duration
	next    time.Time
}

func (s *session) trimmer() (t trimmer) {
	t.every = feedsEvery
	for i := range s.bound {
		b := &s.bound[i]
		if !b.second && b.Blocked == nil && b.Target.ChangeFeed && b.Target.FeedKeep > 0 {
			t.targets = append(t.targets, b.Target)
			t.every = min(t.every, b.Target.FeedKeep)
		}
	}
	if len(t.targets) > 0 {
		t.feeds, _ = s.dst.(sink.Feeds)
	}
	return t
}

// wait is how long nothing is due; negative: nothing ever is.
func (t *trimmer) wait() time.Duration {
	if t.feeds == nil {
		return -1
	}
	return max(0, time.Until(t.next))
}

// trim does a step of each feed if it is due. While there is something to remove the next
// is due at once.
func (t *trimmer) trim(ctx context.Context) (removed int64, err error) {
	if t.wait() != 0 {
		return 0, nil
	}
	for _, target := range t.targets {
		n, err := t.feeds.TrimFeed(ctx, target)
		if err != nil {
			return removed, fmt.Errorf("keep the change feed of %s short: %w", target.Name, err)
		}
		removed += n
	}
	if t.next = time.Now(); removed == 0 {
		t.next = t.next.Add(t.every)
	}
	fault.KillPoint("feeds trimmed")
	return removed, nil
}

// trimOnce does what is due at the end of a run that ends.
func (s *session) trimOnce(ctx context.Context) error {
	t := s.trimmer()
	for range trimsOnce {
		if n, err := t.trim(ctx); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// measureFeeds tells the statistics how large the feeds are. It may be done beside
// batches. What cannot be measured now is so the next time.
func (s *session) measureFeeds(ctx context.Context) {
	feeds, ok := s.dst.(sink.Feeds)
	if !ok {
		return
	}
	list, err := feeds.Feeds(ctx)
	if err != nil {
		s.Log.Debug("the change feeds could not be measured", "error", err.Error())
		return
	}
	s.Stats.SetFeeds(list)
}
