package pipeline

import (
	"context"
	"fmt"

	"tailrace/scd/sequenced"
)

// What is remembered of a bitemporal key is all of its events, so what a batch reads does
// not depend on the batch alone. It is read some keys at a time, which are decided before
// the next are read.
const (
	// portionKeys is how many keys are read first: some megabytes where a key has ten
	// events. A portion that turns out small is followed by one of up to portionGrowth times
	// as many, because each is a statement, and in DuckDB a walk over all that is remembered.
	portionKeys   = 4096
	portionGrowth = 4
	// portionBytes is what a portion is to take in memory, beside the records of one key.
	portionBytes = 64 << 20
	recordBytes  = 200 // what a record takes beside its bytes
)

// remembered reads what is remembered of the keys that the lane has events of.
func (c *channel) remembered(ctx context.Context, looks []sequenced.Lookup) error {
	for keys := portionKeys; len(looks) > 0; {
		n, bytes := len(looks), 1
		if c.target.Bitemporal != nil {
			n = min(n, keys)
		}
		err := c.memory.Remembered(ctx, c.target, looks[:n], func(r sequenced.Record) error {
			bytes += recordBytes + len(r.Key) + len(r.Seq) + len(r.At) + len(r.Body)
			return c.lane.Remember(r)
		})
		if err != nil {
			return fmt.Errorf("read what is remembered of %s: %w", c.target.Name, err)
		}
		if looks = looks[n:]; len(looks) > 0 {
			if err := c.lane.Settle(n); err != nil {
				return c.undecided(err)
			}
		}
		keys = nextPortion(n, bytes)
	}
	return nil
}

// nextPortion is how many keys are read after a portion of so many that took so many bytes.
func nextPortion(keys, bytes int) int {
	return max(1, min(keys*portionGrowth, int(int64(keys)*portionBytes/int64(bytes))))
}

func (c *channel) undecided(err error) error {
	return parkedBy(c.target.Name, fmt.Errorf("decide what %s holds: %w", c.target.Name, err))
}
