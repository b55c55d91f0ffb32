package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/snapdiff"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/source"
)

// exposure is a snapshot that was read and not yet compared.
type exposure struct {
	b       *Bound
	place   sequenced.Place
	version change.Value
	taken   time.Time
	rows    int64
	diff    *snapdiff.Diff
	form    forms
	trial   trial
	marked  []byte // a row behind what it violates
	file    string // of files: which one
}

func (x *exposure) close() {
	x.diff.Close()
	x.trial.dropped.Close()
}

// develop begins a snapshot at a version, if it is above the last one. x is nil where it
// is that one itself.
func (s *session) develop(b *Bound, base sequenced.Base, version change.Value, taken time.Time) (x *exposure, err error) {
	seq, err := sequenced.AppendSequence(nil, version, b.flow.Types[0])
	if err != nil {
		return nil, fault.Refuse("correct snapshot.version", "INVALID_SNAPSHOT_VERSION_TYPE: flow %s: the version cannot be read: %v", b.name(), err)
	}
	place := sequenced.SnapshotPlace(seq)
	switch c := place.Compare(base.Place); {
	case !base.IsZero() && c == 0:
		s.Log.Debug("no snapshot is newer than the last one", "flow", b.name(), "version", string(version.Data))
		return nil, nil
	case !base.IsZero() && c < 0:
		return nil, fault.Refuse("let the version grow with each snapshot", "OUT_OF_ORDER_SNAPSHOT_VERSION: flow %s: a snapshot at version %s came after the one at %s", b.name(), version.Data, base.Version.Data)
	}
	diff, err := snapdiff.Open(s.SpoolDir)
	if err != nil {
		return nil, err
	}
	x = &exposure{b: b, place: place, version: version, taken: taken, diff: diff, form: forms{target: b.Target}}
	x.trial, err = newTrial(b, s.SpoolDir)
	return x, err
}

// add takes a row of the snapshot.
func (x *exposure) add(shaper *sequenced.Shaper, row change.Row) error {
	x.rows++
	kept, err := x.judged(row)
	if err != nil {
		return err
	}
	_, out, ok, err := shaper.Whole(row)
	if err != nil {
		return fault.Corrupted("snapshot of %s: %v", x.b.Target.Source, err)
	}
	if !ok && !kept {
		return x.diff.Kept(nil)
	}
	if !ok {
		return fault.Refuse("leave such rows out of the snapshot, or choose other keys", "flow %s: a key column is NULL in row %d of the snapshot", x.b.name(), x.rows)
	}
	if err := x.form.read(out, len(x.b.Target.Columns)); err != nil {
		return fault.Corrupted("snapshot of %s: %v", x.b.Target.Source, err)
	}
	key, form := x.form.forms()
	if !kept {
		return x.diff.Kept(key)
	}
	if len(x.trial.violated) > 0 {
		out = append(append(x.marked[:0], x.trial.violated...), out...)
		x.marked = out
	}
	return x.diff.Snapshot(key, form, out)
}

// exposeTable reads a table, or what a query gives, in one consistent snapshot.
func (s *session) exposeTable(ctx context.Context, b *Bound, base sequenced.Base) (x *exposure, err error) {
	src, err := s.OpenSource(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the source: %w", err)
	}
	defer s.close("source of a snapshot", src.Close)
	s.markMu.Lock()
	mark := s.mark
	s.markMu.Unlock()
	Locate(src, mark)
	snap, err := src.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of the source: %w", err)
	}
	defer s.close("snapshot", snap.Close)
	if s.Attend != nil && b.Spec.Snapshot.Path == "" {
		relations, err := src.Relations(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the source's catalogue: %w", err)
		}
		now, err := describeShot(ctx, b.Spec.Snapshot, src, relations, s.SourceSchema, s.OpenVersions)
		if err != nil {
			return nil, err
		}
		if !sameLayout(now.rel.Table, b.Relation.Table) {
			return nil, errColumns
		}
	}
	version, err := s.versionOf(ctx, b, base, snap)
	if err != nil || version.State != change.AsText {
		return nil, err
	}
	if x, err = s.develop(b, base, version, snap.Clock()); err != nil || x == nil {
		return nil, err
	}
	req := source.CopyRequest{Table: b.Relation.Table, Query: b.Spec.Snapshot.Query}
	for _, c := range b.Relation.Table.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	shaper := sequenced.NewShaper(b.flow, b.Target)
	if err := s.eachRow(ctx, snap, req, func(row change.Row) error { return x.add(shaper, row) }); err != nil {
		x.close()
		return nil, fmt.Errorf("read the %s: %w", b.Spec.Snapshot.What(), err)
	}
	return x, nil
}

// versionOf finds the version of a snapshot; its State is Absent where the version query
// gives none.
func (s *session) versionOf(ctx context.Context, b *Bound, base sequenced.Base, snap source.Snapshot) (v change.Value, err error) {
	v.State = change.AsText
	switch b.Spec.Snapshot.Version {
	case flow.ByPosition:
		v.Data = []byte(snap.Position().String())
		if b.flow.Types[0].Kind == change.Numeric { // as _lsn of a log in files
			v.Data = []byte(snap.Position().Number())
		}
	case flow.ByCounter:
		next := int64(0)
		if !base.IsZero() {
			if next, err = strconv.ParseInt(string(base.Version.Data), 10, 64); err != nil {
				return v, fault.Corrupted("target %s: the version of its last snapshot is no number", b.Target.Name)
			}
			next++
		}
		v.Data = strconv.AppendInt(nil, next, 10)
	case flow.ByQuery:
		v.State = change.Absent
		rows := 0
		one := &change.Table{Columns: []change.Column{{Name: b.flow.Names[0], Type: b.flow.Types[0], Nullable: true}}}
		err := s.eachRow(ctx, snap, source.CopyRequest{Table: one, Columns: []string{b.flow.Names[0]}, Query: b.Spec.Snapshot.VersionQuery}, func(row change.Row) error {
			values, err := row.Values(nil, 1)
			if err != nil {
				return err
			}
			rows++
			v = change.Value{State: values[0].State, Data: append([]byte(nil), values[0].Data...)}
			return nil
		})
		switch {
		case err != nil:
			return v, fmt.Errorf("version query of flow %s: %w", b.name(), err)
		case rows > 1:
			return v, fault.Refuse("let it give one row, or none where there is no new snapshot", "the version query of flow %s gives %d rows", b.name(), rows)
		case rows == 1 && v.State == change.Null:
			return v, fault.Refuse("let the version query give a value, or no row where there is no new snapshot", "NULL_SNAPSHOT_VERSION: the version query of flow %s gives NULL", b.name())
		case rows == 0:
			s.Log.Info("the version query gives no row: there is no new snapshot", "flow", b.name())
		}
	}
	return v, nil
}

// eachRow hands on the rows of a copy as texts; row is valid during the call only.
func (s *session) eachRow(ctx context.Context, snap source.Snapshot, req source.CopyRequest, fn func(row change.Row) error) error {
	in, out := io.Pipe()
	g, work := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := s.copy(work, snap, req, out)
		out.CloseWithError(err)
		return err
	})
	g.Go(func() error {
		defer in.CloseWithError(errors.New("the copy ended"))
		r := copystream.NewReader(in, false, len(req.Columns))
		for {
			row, err := r.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = fn(row)
			}
			if err != nil {
				return err
			}
		}
	})
	return g.Wait()
}

// fileRests is how long a file must not have been written to before it is read: as files
// of feeds.
const fileRests = 2 * time.Second

// exposeFile reads the oldest file above the last version.
func (s *session) exposeFile(ctx context.Context, b *Bound, base sequenced.Base) (x *exposure, err error) {
	set, err := s.OpenVersions(b.Spec.Snapshot)
	if err != nil {
		return nil, err
	}
	found, err := versionsOf(ctx, set, b.flow.Types[0])
	if err != nil {
		return nil, err
	}
	next := 0
	for next < len(found) && !base.IsZero() && found[next].place.Compare(base.Place) <= 0 {
		next++ // taken, or late (rule R63)
	}
	if next == len(found) {
		return nil, nil
	}
	file := found[next].file
	if wait := fileRests - time.Since(file.Modified); wait > 0 {
		select {
		case <-time.After(min(wait, fileRests)): // somebody may be writing to it
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if wait < fileRests { // else its time lies in the future: by another clock
			return s.exposeFile(ctx, b, base)
		}
	}
	if x, err = s.develop(b, base, change.Value{State: change.AsText, Data: []byte(file.Version)}, time.Now()); err != nil || x == nil {
		return nil, err
	}
	x.file = file.Path
	if s.Attend != nil {
		now, err := describeFiles(ctx, b.Spec.Snapshot, s.OpenVersions)
		if err == nil && now.rel != nil {
			err = now.keep(base.Layout)
		}
		if err == nil && now.rel != nil && !sameLayout(now.rel.Table, b.Relation.Table) {
			err = errColumns
		}
		if err != nil {
			x.close()
			return nil, err
		}
	}
	shaper := sequenced.NewShaper(b.flow, b.Target)
	if err := set.Read(ctx, file, b.Relation.Table, func(row change.Row) error { return x.add(shaper, row) }); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

// forms reads rows of a target in a form in which equal rows of both sides are equal.
type forms struct {
	target *scd.Target
	values []change.Value
	buf    []byte
}

// read takes a row of so many values, of which the target's columns are the first.
func (f *forms) read(row change.Row, width int) (err error) {
	f.values, err = row.Values(f.values, width)
	return err
}

// forms returns those of the key and of the whole row, valid until the next call.
func (f *forms) forms() (key, form []byte) {
	f.buf = f.buf[:0]
	for i := range f.target.Columns {
		if f.target.Columns[i].Key {
			f.buf = appendForm(f.buf, f.values[i], f.target.Columns[i].Type)
		}
	}
	n := len(f.buf)
	for i := range f.target.Columns {
		if !f.target.Columns[i].Key {
			f.buf = appendForm(f.buf, f.values[i], f.target.Columns[i].Type)
		}
	}
	return f.buf[:n], f.buf
}

// key returns the key of the row in values.
func (f *forms) key(t *scd.Target) (key scd.Key) {
	for i := range t.Columns {
		if t.Columns[i].Key {
			key = key.Append(f.values[i])
		}
	}
	return key
}
