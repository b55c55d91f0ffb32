package hydrate

import (
	"context"
	"io"
	"sync"
	"time"
)

// Rate holds all streams of a copy together to a number of bytes per second: a
// bucket that fills at that rate and from which each stream takes what it has read.
// Who finds it in debt waits until the debt is paid, so a write of any size passes
// and the mean is kept. A nil Rate holds nobody.
//
// What waits is the reader's side, before the bytes reach the destination: the source
// sends no more than it is read from, and the destination's transaction only takes
// longer.
type Rate struct {
	perSecond float64
	mu        sync.Mutex
	level     float64 // bytes that may pass now; below 0: owed
	at        time.Time
}

// burst is how much may pass at once after a pause: a tenth of a second's worth, so
// that the source is not read in bursts, and waits are long enough to be exact.
const burst = 100 * time.Millisecond

// NewRate makes a Rate; nil for 0 or less, which is no limit.
func NewRate(bytesPerSecond int64) *Rate {
	if bytesPerSecond <= 0 {
		return nil
	}
	return &Rate{perSecond: float64(bytesPerSecond), at: time.Now()}
}

// Writer gives w, slowed down.
func (r *Rate) Writer(ctx context.Context, w io.Writer) io.Writer {
	if r == nil {
		return w
	}
	return &slowed{ctx: ctx, rate: r, w: w}
}

// wait takes n bytes and waits for as long as they are owed.
func (r *Rate) wait(ctx context.Context, n int) error {
	r.mu.Lock()
	now := time.Now()
	r.level = min(r.level+r.perSecond*now.Sub(r.at).Seconds(), r.perSecond*burst.Seconds()) - float64(n)
	r.at = now
	owed := -r.level
	r.mu.Unlock()
	if owed <= 0 {
		return nil
	}
	pause := time.NewTimer(time.Duration(owed / r.perSecond * float64(time.Second)))
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slowed takes from the bucket every so many bytes: a source writes row by row.
type slowed struct {
	ctx   context.Context
	rate  *Rate
	w     io.Writer
	taken int // written and not asked for yet
}

// askEvery is a lock and a look at the clock for some 300 rows.
const askEvery = 64 << 10

func (s *slowed) Write(b []byte) (int, error) {
	if s.taken += len(b); s.taken >= askEvery {
		taken := s.taken
		s.taken = 0
		if err := s.rate.wait(s.ctx, taken); err != nil {
			return 0, err
		}
	}
	return s.w.Write(b)
}
