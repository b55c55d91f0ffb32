package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/source"
)

// Repair is how the rows of one target that differed were made equal to the source.
type Repair struct {
	Position string // at which they are equal
	Type2    bool
	Keys     int64 // of rows that differed
	sink.Replaced
	Refused string     // it was not repaired, and why
	After   Comparison // the target compared again
}

// keys is room for the keys that differ.
func (o Checking) keys() *keySet {
	if !o.Repair {
		return nil
	}
	return &keySet{keys: map[string]struct{}{}}
}

// wants reports whether what was found can be mended.
func (k *keySet) wants(found Comparison) bool { return k != nil && (len(k.keys) > 0 || k.over) }

// repairable finds a target, and refuses those whose rows cannot be made equal one by one.
func (s *session) repairable(name string) (*Bound, error) {
	b, err := s.ordered(name)
	if err != nil {
		return nil, err
	}
	remedy := fmt.Sprintf("tailrace resync --table %s", b.Target.Name)
	if b.judge != nil {
		return nil, fault.Refuse(remedy, "target %s does not hold all rows of its source table as they are: its flow has expectations, and a row that differs may be one that was dropped", b.Target.Name)
	}
	if st := s.state(b.Target.Name); st.Phase == checkpoint.Parked {
		return nil, fault.Refuse(remedy, "target %s is parked, and its source has gone on: %s", b.Target.Name, st.Reason)
	}
	if b.Target.AppendOnly {
		return nil, fault.Refuse(remedy, "target %s has no key by which a row could be repaired", b.Target.Name)
	}
	if _, ok := s.dst.(sink.Resyncs); !ok {
		return nil, fault.Badly("this destination cannot repair a target beside its readers")
	}
	return b, nil
}

// repair makes the rows with keys equal to the source as it stands in a snapshot, at
// whose position the mark stands, in one transaction of the destination. Rows that have
// become equal meanwhile are not touched.
func (s *session) repair(ctx context.Context, b *Bound, snap source.Snapshot, keys *keySet, w *watch) (*Repair, error) {
	r := &Repair{Position: snap.Position().String(), Type2: b.Target.Kind == scd.Type2, Keys: int64(len(keys.keys))}
	if keys.over {
		r.Refused = fmt.Sprintf("more than %d rows differ. Remedy: tailrace resync --table %s", verifyEnough, b.Target.Name)
		return r, nil
	}
	if s.mark.Position != snap.Position() {
		return nil, fault.Retry(nil, "the mark at %s is not at the snapshot's %s", s.mark.Position, snap.Position())
	}
	w.doing("repairing")
	began := time.Now()
	stages := s.dst.(sink.Resyncs) // repairable has looked
	what := sink.Replacement{At: snap.Clock(), Done: s.state(b.Target.Name), Part: &sink.Part{}}
	if r.Type2 {
		what.Gap = &sink.Gap{Target: b.Target.Name, From: snap.Position(), To: snap.Position(), Reason: "rows that differed from the source were repaired"}
	}
	var err error
	if what.Part.Gone, err = s.stageKeys(ctx, stages, b, snap, keys); err == nil {
		fault.KillPoint("repair staged")
		r.Replaced, err = stages.Replace(ctx, b.Target, what)
	}
	if fault.KindOf(err) == fault.Operator {
		r.Refused = err.Error() // of this target alone
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("repair %s: %w", b.Target.Name, err)
	}
	fault.KillPoint("repair done")
	s.Log.Info("repaired", "target", b.Target.Name.String(), "position", r.Position, "keys", r.Keys,
		"removed", r.Removed, "written", r.Written, "seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds()))
	return r, nil
}

// repairKeys is how many rows are asked for in one statement: its text stays below
// some 100 kB.
const repairKeys = 1000

// stageKeys copies the source's rows with keys into the target's stage, and returns the
// keys that the source does not have.
func (s *session) stageKeys(ctx context.Context, stages sink.Resyncs, b *Bound, snap source.Snapshot, keys *keySet) (gone []change.Row, err error) {
	binary := BinaryForm([]Bound{*b}, s.dst)
	missing := map[string]struct{}{}
	for key := range keys.keys {
		missing[key] = struct{}{}
	}
	pr, pw := io.Pipe()
	read := make(chan error, 1)
	go func() {
		out := copystream.NewWriter(pw, binary)
		err := s.sendKeys(ctx, b, snap, binary, keys.list(), missing, out)
		if err == nil {
			err = out.End()
		}
		pw.CloseWithError(err)
		read <- err
	}()
	_, err = stages.Stage(ctx, b.Target, sink.Copy{Binary: binary, Rows: pr})
	pr.CloseWithError(errVerifyStopped)
	if readErr := <-read; readErr != nil && !errors.Is(readErr, errVerifyStopped) {
		err = readErr
	}
	for key := range missing {
		gone = append(gone, change.Row(key))
	}
	return gone, err
}

// sendKeys reads the rows with the given keys, and takes them out of missing. A source
// may find more rows than were asked for, where keys compare equal that are spelled
// otherwise.
func (s *session) sendKeys(ctx context.Context, b *Bound, snap source.Snapshot, binary bool, list []string, missing map[string]struct{}, out *copystream.Writer) error {
	for some := range slices.Chunk(list, repairKeys) {
		asked := make([][]*string, len(some))
		for i, key := range some {
			var err error
			if asked[i], err = keyTexts(b, []byte(key)); err != nil {
				return fault.Corrupted("a key of %s cannot be read: %v", b.Target.Name, err)
			}
		}
		req := s.request(b, binary)
		req.Keys = asked
		err := s.readRows(ctx, snap, b, req, func(key, _ []byte, row change.Row) error {
			if _, wanted := missing[string(key)]; !wanted {
				return nil
			}
			delete(missing, string(key))
			return out.Row(row, len(b.Target.Columns))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compareAgain says what differs after a repair.
func (s *session) compareAgain(ctx context.Context, b *Bound, snap source.Snapshot, target sink.Reader, r *Repair, w *watch) (err error) {
	if r.Refused == "" {
		w.doing("comparing again")
		r.After, err = s.compare(ctx, b, snap, target, nil, w)
	}
	return err
}

// stagesFree refuses a repair while a copy beside the stream has stages of its own.
func (s *session) stagesFree() error {
	if c := s.copies.running(); c != nil {
		return fault.Retry(nil, "%s is being copied beside the stream: ask for the repair again when that is done", c.names())
	}
	return nil
}

// mend cuts the stream at a new snapshot, and repairs there what an earlier comparison
// has found.
func (v *verification) mend(stop, work context.Context, found *verification) error {
	v.watch = found.watch
	if err := v.stagesFree(); err != nil {
		return err
	}
	if err := v.cutAtSnapshot(stop, work); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(work) // a stop ends it at once: a stage is nothing
	defer cancel()
	defer context.AfterFunc(stop, cancel)()
	for i, keys := range found.keys {
		if keys == nil {
			continue
		}
		b, err := v.repairable(found.list[i].Target.Name.String())
		if fault.KindOf(err) == fault.Operator { // it was parked meanwhile, or its table altered
			found.results[i].Repair = &Repair{Refused: err.Error()}
			continue
		}
		if err == nil {
			found.list[i] = b
			found.results[i].Repair, err = v.repair(ctx, b, v.snap, keys, v.watch)
		}
		if stop.Err() != nil {
			return stop.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// look compares what was repaired again.
func (v *verification) look(ctx context.Context, found *verification) error {
	return v.limited(ctx, func(ctx context.Context) error {
		for i := range found.results {
			if r := found.results[i].Repair; r != nil {
				if err := v.compareAgain(ctx, found.list[i], v.snap, v.view, r, v.watch); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
