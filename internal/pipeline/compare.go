package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/change/rowsum"
	"tailrace/sink"
	"tailrace/source"
)

// compare compares a target with its source's rows in a snapshot. The keys that differ
// go into keys, if it is not nil.
func (s *session) compare(ctx context.Context, b *Bound, snap source.Snapshot, target sink.Reader, keys *keySet, w *watch) (Comparison, error) {
	v := verifier{session: s, b: b, snap: snap, target: target, keyed: !b.Target.AppendOnly, keys: keys, watch: w, result: Comparison{Target: b.Target.Name}}
	v.expected, v.held, v.spell = v.readSource, v.readTarget, v.spellKey
	err := v.sums(ctx)
	if err == nil {
		err = v.run(ctx)
	}
	if err != nil {
		return Comparison{}, fmt.Errorf("verify %s: %w", b.Target.Name, err)
	}
	return v.result, nil
}

// reading reads one side of a comparison: of each row its key, the whole (key in front
// or not), and what names the key for a person; all valid during the call.
type reading func(ctx context.Context, fn func(key, row []byte, name func() string) error) error

// verifier compares one target with what it must hold, in memory that does not grow
// with the table.
//
// Where both sides are servers that can say the same sums of a table, these are asked
// for first, and only the rows in buckets that differ are read: see sums.
//
// Both sides are reduced to sums of row hashes in buckets chosen by the key. The rows
// in buckets whose sums differ are suspects. While there are more of them than may be
// held they are reduced again, in buckets chosen otherwise, so that each pass leaves
// the rows that differ and few others; then the keys of the suspects are held, and
// compared one by one. A pass reads both sides once.
type verifier struct {
	*session
	b      *Bound
	snap   source.Snapshot
	target sink.Reader
	seed   [2]maphash.Seed
	sieves []*sieve
	keyed  bool
	part   *rowsum.Part // the rows in question; nil: all
	binary bool         // the form of this target's canonical rows, whatever the log's is
	keys   *keySet
	watch  *watch
	result Comparison

	expected, held reading
	spell          func(key []byte) string // spells a key for a person; nil: the readings do
}

const (
	// There are so many buckets that a bucket has verifyBucket rows, by the source's
	// estimate: a row that differs makes as many suspects. At most 64 MB of them.
	verifyBucket      = 16
	verifyBucketsMin  = 1 << 14
	verifyBucketsMost = 1 << 20
	// Bytes of suspects' keys that are held at once, each with verifyEach bytes beside it.
	verifyHeld = 64 << 20
	verifyEach = 100
	// Enough to see a pattern; a table that differs everywhere is not listed.
	verifyExamples = 20
	verifyEnough   = 100_000
)

type digest struct{ a, b uint64 }

// bucket is the sum over rows.
type bucket struct {
	digest
	rows int64
	keys int64 // bytes of the keys
}

func (b bucket) differs(c bucket) bool { return b.digest != c.digest || b.rows != c.rows }

// bytes is what holding the suspects of a bucket takes.
func (b bucket) bytes() int64 { return b.keys + b.rows*verifyEach }

// sieve is one reduction of both sides.
type sieve struct {
	seed        maphash.Seed
	here, there []bucket // nil once another has taken its place
	differs     []bool
}

func (s *sieve) bucket(key []byte) int {
	return int(maphash.Bytes(s.seed, key) & uint64(len(s.differs)-1))
}

// suspects is how many rows it has not ruled out, and what holding them takes.
func (s *sieve) suspects() (rows, bytes int64) {
	for i, differs := range s.differs {
		if differs {
			rows += max(s.here[i].rows, s.there[i].rows)
			bytes += max(s.here[i].bytes(), s.there[i].bytes())
		}
	}
	return rows, bytes
}

func (v *verifier) run(ctx context.Context) error {
	v.seed = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	alone := *v.b
	alone.judge = nil // a judge reads texts, a comparison does not
	v.binary = BinaryForm([]Bound{alone}, v.dst)
	if v.part == nil || len(v.part.Wanted) > 0 {
		if err := v.rows(ctx); err != nil {
			return err
		}
	}
	v.watch.doing("checking invariants")
	violations, err := v.target.Invariants(ctx, v.b.Target)
	if err != nil {
		return fmt.Errorf("check invariants: %w", err)
	}
	v.result.Violations = violations
	return nil
}

// rows compares rows in their canonical form.
func (v *verifier) rows(ctx context.Context) error {
	last, err := v.sift(ctx, bucketsFor(v.b.Relation.Rows))
	if err != nil {
		return err
	}
	if v.part == nil {
		for _, b := range last.here {
			v.result.Rows += b.rows
		}
	}
	v.watch.doing("looking at the rows that may differ")
	rows, bytes := last.suspects()
	for v.keyed && bytes > verifyHeld {
		last.here, last.there = nil, nil
		if last, err = v.sift(ctx, bucketsFor(rows)); err != nil {
			return err
		}
		before := rows
		if rows, bytes = last.suspects(); rows > before/2 {
			break // so many differ that ruling out others is in vain
		}
	}
	return v.differences(ctx, last)
}

// bucketsFor is how many buckets a number of rows is given.
func bucketsFor(rows int64) int {
	buckets := verifyBucketsMin
	for buckets < verifyBucketsMost && int64(buckets) < rows/verifyBucket {
		buckets *= 2
	}
	return buckets
}

// sift reduces what no earlier sieve has ruled out.
func (v *verifier) sift(ctx context.Context, buckets int) (*sieve, error) {
	s := &sieve{seed: maphash.MakeSeed(), here: make([]bucket, buckets), there: make([]bucket, buckets), differs: make([]bool, buckets)}
	tally := func(into []bucket) func(key, row []byte, _ func() string) error {
		return func(key, row []byte, _ func() string) error {
			v.watch.row()
			if !v.keyed {
				key = row
			}
			if !v.suspect(key) {
				return nil
			}
			d, k := v.digest(row), &into[s.bucket(key)]
			k.a, k.b, k.rows, k.keys = k.a+d.a, k.b+d.b, k.rows+1, k.keys+int64(len(key))
			return nil
		}
	}
	if err := v.expected(ctx, tally(s.here)); err != nil {
		return nil, err
	}
	if err := v.held(ctx, tally(s.there)); err != nil {
		return nil, err
	}
	for i := range s.here {
		s.differs[i] = s.here[i].differs(s.there[i])
	}
	v.sieves = append(v.sieves, s)
	return s, nil
}

// suspect reports whether no sieve has ruled a key out.
func (v *verifier) suspect(key []byte) bool {
	for _, s := range v.sieves {
		if !s.differs[s.bucket(key)] {
			return false
		}
	}
	return true
}

func (v *verifier) digest(row []byte) digest {
	return digest{maphash.Bytes(v.seed[0], row), maphash.Bytes(v.seed[1], row)}
}

func abs(n int64) int64 { return max(n, -n) }

// differences holds the suspects, as many at once as may be, and names those that differ.
func (v *verifier) differences(ctx context.Context, last *sieve) error {
	var left []int
	for i, differs := range last.differs {
		if differs {
			left = append(left, i)
		}
	}
	if !v.keyed {
		for _, i := range left {
			v.result.Differences += max(1, abs(last.here[i].rows-last.there[i].rows))
		}
		if len(left) > 0 {
			v.result.Examples = []string{"rows without a key cannot be named"}
		}
		return nil
	}
	for len(left) > 0 {
		if v.result.Differences >= verifyEnough {
			v.result.Cut = true
			return nil
		}
		wanted := make([]bool, len(last.differs))
		var size int64
		n := 0
		for n < len(left) && (n == 0 || size < verifyHeld) {
			wanted[left[n]] = true
			size += max(last.here[left[n]].bytes(), last.there[left[n]].bytes())
			n++
		}
		left = left[n:]
		if err := v.name(ctx, func(key []byte) bool { return wanted[last.bucket(key)] && v.suspect(key) }); err != nil {
			return err
		}
	}
	return nil
}

// name compares the wanted rows one by one.
func (v *verifier) name(ctx context.Context, wanted func(key []byte) bool) error {
	type seen struct {
		digest
		text  string // without v.spell
		count int
	}
	source := map[string]seen{}
	err := v.expected(ctx, func(key, row []byte, name func() string) error {
		v.watch.row()
		if wanted(key) {
			s := seen{digest: v.digest(row)}
			if v.spell == nil {
				s.text = name()
			}
			source[string(key)] = s
		}
		return nil
	})
	if err != nil {
		return err
	}
	differ := func(key []byte, text, what string) {
		v.result.Differences++
		v.keys.add(key)
		if len(v.result.Examples) < verifyExamples {
			if v.spell != nil {
				text = v.spell(key)
			}
			v.result.Examples = append(v.result.Examples, text+": "+what)
		}
	}
	err = v.held(ctx, func(key, row []byte, name func() string) error {
		v.watch.row()
		if !wanted(key) {
			return nil
		}
		s, there := source[string(key)]
		switch {
		case !there && v.spell == nil:
			differ(key, name(), "only in the destination")
		case !there:
			differ(key, "", "only in the destination")
		case s.count > 0:
			differ(key, s.text, "more than once in the destination")
		case s.digest != v.digest(row):
			differ(key, s.text, "values differ")
		}
		if there {
			s.count++
			source[string(key)] = s
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, s := range source {
		if s.count == 0 {
			differ([]byte(key), s.text, "missing in the destination")
		}
	}
	return nil
}

func (v *verifier) readSource(ctx context.Context, fn func(key, row []byte, name func() string) error) error {
	req := v.request(v.b, v.binary)
	req.Part = v.part
	return v.readRows(ctx, v.snap, v.b, req, func(key []byte, form []byte, _ change.Row) error { return fn(key, form, nil) })
}

// request asks for a target's rows at the source.
func (s *session) request(b *Bound, binary bool) source.CopyRequest {
	t := b.Target
	req := source.CopyRequest{Table: b.Relation.Table, Binary: binary}
	for _, c := range t.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	for _, k := range t.Keys() {
		req.KeyColumns = append(req.KeyColumns, t.Columns[k].Name)
	}
	return req
}

// readRows reads rows of a source table: of each the canonical form, which begins with
// its key, and the row itself.
func (s *session) readRows(ctx context.Context, snap source.Snapshot, b *Bound, req source.CopyRequest, fn func(key, form []byte, row change.Row) error) error {
	t := b.Target
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := snap.Copy(ctx, req, pw)
		pw.CloseWithError(err)
		ended <- err
	}()
	err := func() error {
		rows := copystream.NewReader(pr, req.Binary, len(t.Columns))
		var form []byte
		for {
			row, err := rows.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			var n int
			if form, n, err = s.dst.Canonical(t, row, form[:0]); err != nil {
				return err
			}
			if err := fn(form[:n], form, row); err != nil {
				return err
			}
		}
	}()
	pr.CloseWithError(errVerifyStopped)
	cancel()
	if copyErr := <-ended; copyErr != nil && !errors.Is(copyErr, errVerifyStopped) && (err == nil || errors.Is(err, copyErr)) {
		return fmt.Errorf("read the source: %w", copyErr)
	}
	return err
}

var errVerifyStopped = errors.New("verify stopped reading")

func (v *verifier) readTarget(ctx context.Context, fn func(key, row []byte, name func() string) error) error {
	take := func(key, row []byte) error { return fn(key, row, nil) }
	var err error
	if v.part != nil {
		err = v.target.(sink.Summer).ScanPart(ctx, v.b.Target, *v.part, take)
	} else {
		err = v.target.Scan(ctx, v.b.Target, take)
	}
	if err != nil {
		return fmt.Errorf("read the destination: %w", err)
	}
	return nil
}

// spellKey spells a key for a person.
func (v *verifier) spellKey(key []byte) string {
	texts, err := keyTexts(v.b, key)
	if err != nil {
		return "a key that cannot be read"
	}
	parts := make([]string, len(texts))
	for i, k := range v.b.Target.Keys() {
		parts[i] = v.b.Target.Columns[k].Name + "="
		if texts[i] == nil {
			parts[i] += "NULL"
		} else {
			parts[i] += *texts[i]
		}
	}
	return strings.Join(parts, " ")
}

// keyTexts gives the values of a key in canonical form as texts; nil is NULL.
func keyTexts(b *Bound, key []byte) ([]*string, error) {
	keys := b.Target.Keys()
	values, err := change.Row(key).Values(nil, len(keys))
	if err != nil {
		return nil, err
	}
	texts := make([]*string, len(keys))
	for i, k := range keys {
		if values[i].State == change.Null {
			continue
		}
		text, err := pgvalue.Text(nil, values[i], b.Target.Columns[k].Type)
		if err != nil {
			return nil, err
		}
		spelled := string(text)
		texts[i] = &spelled
	}
	return texts, nil
}

// keySet is the keys of rows that differ, in canonical form.
type keySet struct {
	keys map[string]struct{}
	over bool // there are more than it holds
}

func (k *keySet) add(key []byte) {
	switch {
	case k == nil:
	case len(k.keys) >= verifyEnough:
		k.over = true
	default:
		k.keys[string(key)] = struct{}{}
	}
}

// list gives the keys in a fixed order.
func (k *keySet) list() (keys []string) {
	for key := range k.keys {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
