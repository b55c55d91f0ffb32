package pipeline

import (
	"context"
	"errors"
	"fmt"

	"tailrace/internal/change/rowsum"
	"tailrace/sink"
	"tailrace/source"
)

// Both servers sum up in at most so many buckets: of a table of 100 million rows one
// that differs makes 1500 suspects, and a server needs some 20 MB for them.
const sumBucketsMost = 1 << 16

// sums has both servers reduce the table to sums of row hashes, at once, and leaves in
// v.part the buckets that differ. It does nothing where one of them cannot, or where
// equal sums would not mean equal rows.
func (v *verifier) sums(ctx context.Context) error {
	here, ok := v.snap.(source.Summer)
	there, also := v.target.(sink.Summer)
	if !ok || !also {
		return nil
	}
	req := v.request(v.b, false)
	form, err := here.SumForm(ctx, req)
	if err != nil || form == "" {
		return err
	}
	if other, err := there.SumForm(ctx, v.b.Target); err != nil || other != form {
		return err
	}
	v.watch.doing("summing up on both servers")
	s := rowsum.New(min(bucketsFor(v.b.Relation.Rows), sumBucketsMost))
	source, target := make([]rowsum.Bucket, s.Buckets), make([]rowsum.Bucket, s.Buckets)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := here.Sum(ctx, req, s, source)
		if err != nil {
			cancel()
		}
		ended <- err
	}()
	err = there.Sum(ctx, v.b.Target, s, target)
	if err != nil {
		cancel()
	}
	if e := <-ended; e != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = fmt.Errorf("read the source: %w", e)
	}
	if err != nil {
		return err
	}
	part := rowsum.Part{Sums: s}
	var rows, both, suspects int64
	for i := range source {
		rows += source[i].Rows
		both += source[i].Rows + target[i].Rows
		if source[i] != target[i] {
			part.Wanted = append(part.Wanted, i)
			suspects += source[i].Rows
		}
	}
	v.Log.Debug("summed up on both servers", "target", v.b.Target.Name.String(), "rows", rows, "buckets", s.Buckets, "differ", len(part.Wanted))
	if suspects > rows/2 {
		return nil // most of it is to be read: it is read without asking for each row
	}
	v.part, v.result.Rows = &part, rows
	v.watch.rows(both)
	return nil
}
