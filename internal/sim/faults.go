package sim

import (
	"errors"
	"math/rand/v2"
	"sync"

	"tailrace/internal/fault"
)

// Faults fails calls at random. Some fail before anything was done; some after, so
// that the work is there but nobody heard of it.
type Faults struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	Rate    float64 // share of calls that fail
	Planted string  // the next call of this kind fails, whatever the rate; set before the first call
	Seen    map[string]int
}

// NewFaults makes faults from their own seed.
func NewFaults(rnd *rand.Rand, rate float64) *Faults {
	return &Faults{rnd: rnd, Rate: rate, Seen: map[string]int{}}
}

var errInjected = errors.New("injected fault")

func (f *Faults) hit(what string) error   { return f.roll(what + " refused") }
func (f *Faults) after(what string) error { return f.roll(what + " done, answer lost") }

func (f *Faults) roll(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Planted == what {
		f.Planted = ""
	} else if f.rnd.Float64() >= f.Rate {
		return nil
	}
	f.Seen[what]++
	return fault.Retry(errInjected, "%s", what)
}

// Stop ends all faults.
func (f *Faults) Stop() {
	f.mu.Lock()
	f.Rate, f.Planted = 0, ""
	f.mu.Unlock()
}
