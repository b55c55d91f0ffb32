package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
	"unicode/utf8"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

const (
	// defaultPiece bounds the memory of rows handed on at once where the caller sets
	// no bound: a file beyond it comes in pieces.
	defaultPiece = 8 << 20
	// changeBytes is what a change costs beside its row.
	changeBytes = 80
	// restPolls is how many looks in a row must find a file as it was, if it is too
	// young by its time: clocks of file servers differ from ours.
	restPolls = 2
	// scanShare bounds the part of the time that is spent on listing folders: the wait
	// is at least so many times what the last look took.
	scanShare = 10
)

type fileKey struct{ relation, path string }

// follower takes files one after another. Each look lists all folders; what was taken
// is compared with what the mark says of it; what is new is taken in order if it has
// rested. A file that has not holds back those behind it in its relation, so that
// the order of files is kept where it can be; a file that comes with an earlier name
// later on is taken then, and its events still order by its path.
type follower struct {
	source    *Source
	once      bool
	pieceMost int
	out       func(context.Context, *change.Segment) error

	relations []*relation
	layouts   []*layout
	taken     map[fileKey]*change.File
	resting   map[fileKey]rest
	goal      map[fileKey]bool // of once, or of relations that are taken once: what was there at the start
	ended     []bool           // relations that are not looked at any more
	count     uint64           // files taken, from the position of the start on
	listing   time.Duration    // what the last look took to list and compare
	slab      slab
}

// rest is what is known of a file that is too young to be taken.
type rest struct {
	size     int64
	modified time.Time
	polls    int // looks that found it unchanged
}

// Follow implements source.Source. A file is one transaction; positions count them.
// The error about a malformed file may come behind pieces of it, never behind the
// last one.
func (s *Source) Follow(ctx context.Context, from change.Position, o source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	f := &follower{source: s, once: o.Once, pieceMost: defaultPiece, out: out,
		taken: make(map[fileKey]*change.File, len(o.Taken)), count: from.Offset}
	if o.PieceBytes > 0 {
		f.pieceMost = int(o.PieceBytes)
	}
	for i := range o.Taken {
		t := o.Taken[i]
		f.taken[fileKey{t.Relation.Table, t.Path}] = &t
	}
	err := f.follow(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("follow files: %w", err)
}

func (f *follower) follow(ctx context.Context) error {
	for _, rel := range f.source.relations {
		if rel.Once && f.taken[fileKey{rel.Name, ""}] != nil {
			continue // taken to its end
		}
		l, err := f.source.layoutOf(ctx, rel)
		if errors.Is(err, errNothingToInferFrom) {
			f.source.log.Warn("a relation is not followed before the next start: there is no file yet to infer its columns from", "relation", rel.Name)
			continue
		}
		if err != nil {
			return err
		}
		f.relations, f.layouts = append(f.relations, rel), append(f.layouts, l)
	}
	f.ended = make([]bool, len(f.relations))
	for {
		waiting, err := f.look(ctx)
		if err != nil {
			return err
		}
		if f.once && waiting == 0 {
			quiet := change.Tx{First: true, Last: true, End: change.Position{Offset: f.count}}
			if err := f.out(ctx, &change.Segment{Txs: []change.Tx{quiet}, Bytes: changeBytes}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}
		timer := time.NewTimer(max(f.source.poll, scanShare*f.listing))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// look lists the folders once and takes what can be taken. waiting counts files that
// are to be taken later.
func (f *follower) look(ctx context.Context) (waiting int, err error) {
	began := time.Now()
	fresh := make([][]found, len(f.relations))
	for i, rel := range f.relations {
		if f.ended[i] {
			continue
		}
		files, err := rel.list(ctx)
		if err != nil {
			return 0, fmt.Errorf("relation %s: %w", rel.Name, err)
		}
		if fresh[i], err = f.fresh(ctx, rel, files); err != nil {
			return 0, err
		}
	}
	f.listing = time.Since(began)
	f.keepGoal(fresh)
	ready := f.ready(fresh)
	more := 0
	for i := range ready {
		more += ready[i]
		waiting += len(fresh[i]) - ready[i]
	}
	for i := range fresh {
		left := len(fresh[i]) - ready[i]
		for _, file := range fresh[i][:ready[i]] {
			more--
			taken, err := f.take(ctx, f.layouts[i], file, more > 0)
			if err != nil {
				return 0, err
			}
			if !taken {
				waiting++
				left++
			}
		}
		if f.relations[i].Once && !f.ended[i] && left == 0 {
			if err := f.end(ctx, i); err != nil {
				return 0, err
			}
		}
	}
	return waiting, nil
}

// end hands on that a relation which is taken once was taken to its end. One without
// any file is more likely misspelt or early than empty: it is looked at again at the
// next start.
func (f *follower) end(ctx context.Context, i int) error {
	rel := f.relations[i]
	f.ended[i] = true
	end := change.File{Relation: rel.name(), Modified: f.source.now().UTC().Truncate(time.Microsecond)}
	for key := range f.taken {
		if key.relation == rel.Name {
			end.Rows++
		}
	}
	if end.Rows == 0 {
		f.source.log.Warn("a relation that is to be taken once has no file; it is looked at again at the next start", "relation", rel.Name, "path", rel.Path)
		return nil
	}
	f.source.log.Info("a relation was taken to its end; it is not looked at any more", "relation", rel.Name, "files", end.Rows)
	tx := change.Tx{First: true, Last: true, End: change.Position{Offset: f.count}, File: &end}
	return f.out(ctx, &change.Segment{Txs: []change.Tx{tx}, Bytes: changeBytes})
}

// fresh returns the files that have not been taken, and compares the others with
// what was taken: by size and time, and only if one of them differs by content.
func (f *follower) fresh(ctx context.Context, rel *relation, files []found) ([]found, error) {
	var fresh []found
	for _, file := range files {
		known := f.taken[fileKey{rel.Name, file.path}]
		switch {
		case known == nil && !utf8.ValidString(file.path):
			return nil, fault.Refuse("rename it", "relation %s: the name of file %q is not UTF-8", rel.Name, file.path)
		case known == nil:
			fresh = append(fresh, file)
		// The mark keeps times in microseconds.
		case known.Size == file.size && known.Modified.Truncate(time.Microsecond).Equal(file.modified.Truncate(time.Microsecond)):
		default:
			if err := f.compare(ctx, rel, file, known); err != nil {
				return nil, err
			}
		}
	}
	return fresh, nil
}

// compare judges a taken file whose size or time is another now.
func (f *follower) compare(ctx context.Context, rel *relation, file found, known *change.File) error {
	was := fmt.Sprintf("%d bytes of %s, checksum %s", known.Size, stamp(known.Modified), known.Checksum)
	is := fmt.Sprintf("%d bytes of %s", file.size, stamp(file.modified))
	if file.size == known.Size {
		o, err := file.open()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return explain(rel, file, err)
		}
		defer o.file.Close()
		sum, err := o.checksum(ctx)
		if err != nil {
			return explain(rel, file, err)
		}
		if sum == known.Checksum {
			known.Modified = o.modified // touched, or copied to where it was
			return nil
		}
		is += ", checksum " + sum
	}
	return fault.Refuse("put the old content back; or give the new content another name, under which it is taken as a new file; "+
		"or, if the target is to be made of what is there now, `tailrace run --overwrite` takes all files again",
		"relation %s, file %s: it was taken already, and its content has changed since: %s were taken, %s are there", rel.Name, file.path, was, is)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999Z") }

// ready counts, for each relation, the files up to the first that has not rested. It
// looks at the others too: so that they rest side by side, not one after another.
func (f *follower) ready(fresh [][]found) []int {
	before := f.resting
	f.resting = map[fileKey]rest{}
	ready := make([]int, len(fresh))
	for i, rel := range f.relations {
		ready[i] = len(fresh[i])
		for at, file := range fresh[i] {
			if !f.rested(fileKey{rel.Name, file.path}, file, before) {
				ready[i] = min(ready[i], at)
			}
		}
	}
	return ready
}

// rested reports whether nobody seems to write to the file any more.
func (f *follower) rested(key fileKey, file found, before map[fileKey]rest) bool {
	b, known := before[key]
	r, rested := rests(file, b, known, f.source.now(), f.source.poll)
	if rested && r.polls == 0 {
		return true // by its time
	}
	if !known {
		f.source.log.Debug("a file waits until it has rested", "relation", key.relation, "file", key.path)
	}
	f.resting[key] = r
	return rested
}

// rests judges a file by its time, and by what the look before has found, if it knew the
// file; r is what this look has found.
func rests(file found, before rest, known bool, now time.Time, poll time.Duration) (r rest, rested bool) {
	r = rest{size: file.size, modified: file.modified}
	if now.Sub(file.modified) > poll {
		return r, true
	}
	if known && before.size == r.size && before.modified.Equal(r.modified) {
		r.polls = before.polls + 1
	}
	return r, r.polls >= restPolls
}

// keepGoal leaves of the fresh files those that were there at the start, where no
// others are wanted.
func (f *follower) keepGoal(fresh [][]found) {
	first := f.goal == nil
	if first {
		f.goal = map[fileKey]bool{}
	}
	for i, rel := range f.relations {
		if !f.once && !rel.Once {
			continue
		}
		kept := fresh[i][:0]
		for _, file := range fresh[i] {
			key := fileKey{rel.Name, file.path}
			if first {
				f.goal[key] = true
			}
			if f.goal[key] {
				kept = append(kept, file)
			}
		}
		fresh[i] = kept
	}
}
