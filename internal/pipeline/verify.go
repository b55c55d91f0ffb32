package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/sink"
	"tailrace/source"
)

// Comparison is what verify found for one target.
type Comparison struct {
	Target      change.Name
	Rows        int64    // rows of the source
	Differences int64    // rows that differ, are missing or too many; at least this many if Cut
	Cut         bool     // it stopped looking for more
	Examples    []string // keys of the first of them, with what differs
	Violations  []string // broken invariants of the target
	Skipped     string   // not compared, and why
	Once        bool     // it was copied once and is not followed: its source may differ by now
	Events      string   // its source holds events, not rows: it was compared with those that are remembered; what of it
	Checked     string   // with Events: which invariants were checked
}

// Verify catches up to the position of a snapshot of the source, and compares every
// live target with that snapshot: both sides at one position, even while the source
// is being written. It owns the pipeline meanwhile.
func Verify(ctx context.Context, c Config, tables []string, report func(Comparison)) error {
	return Run(ctx, c, Mode{atSnapshot: func(ctx context.Context, snap source.Snapshot, s *session) error {
		list, err := s.chosen(tables)
		if err != nil {
			return err
		}
		for _, b := range list {
			result, done, err := s.withoutScan(ctx, b)
			if err == nil && !done {
				result, err = s.compare(ctx, b, snap, s.dst)
			}
			if err != nil {
				return err
			}
			report(result)
		}
		return nil
	}})
}

// verifyMost bounds a comparison beside a running pipeline: as long as it takes, the
// source keeps its log and dead rows for the snapshot, and the destination those that
// are replaced.
const verifyMost = 6 * time.Hour

// Verify compares beside the running pipeline. The stream is cut at the position of a
// snapshot of the source, and the destination is asked to keep that moment; then the
// stream goes on, and the two moments are compared. Targets with a sequence, which are
// compared inside the destination, are compared before the stream goes on.
func (h *Hold) Verify(ctx context.Context, tables []string) ([]Comparison, error) {
	var v *verification
	err := h.errand(ctx, func(stop, work context.Context, s *session) (err error) {
		v, err = s.verification(stop, work, tables)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer v.close()
	ctx, cancel := context.WithTimeoutCause(ctx, verifyMost, errVerifyLong)
	defer cancel()
	for i := range v.results {
		if v.done[i] {
			continue
		}
		began := time.Now()
		v.results[i], err = v.compare(ctx, v.list[i], v.snap, v.view)
		if errors.Is(context.Cause(ctx), errVerifyLong) {
			return nil, fault.Refuse("compare fewer targets at once with --table", "the comparison took more than %s", verifyMost)
		}
		if err != nil {
			return nil, err
		}
		v.Log.Info("compared with the source", "target", v.list[i].Target.Name.String(), "position", v.snap.Position().String(),
			"rows", v.results[i].Rows, "differences", v.results[i].Differences, "seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds()))
	}
	return v.results, nil
}

var errVerifyLong = errors.New("the comparison takes too long")

// verification is a comparison of two moments. Of the session it uses what does not
// change: destination and log.
type verification struct {
	*session
	list    []*Bound
	results []Comparison
	done    []bool // there is a result
	snap    source.Snapshot
	view    sink.View
}

func (s *session) verification(stop, work context.Context, tables []string) (v *verification, err error) {
	views, ok := s.dst.(sink.Views)
	if !ok {
		return nil, fault.Badly("this destination cannot be compared beside a running pipeline: stop it first")
	}
	list, err := s.chosen(tables)
	if err != nil {
		return nil, err
	}
	made := &verification{session: s, list: list, results: make([]Comparison, len(list)), done: make([]bool, len(list))}
	v = made
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if v.snap, err = s.snapshotFor(work); err != nil {
		return nil, err
	}
	if err = s.cut(stop, work, v.snap); err != nil {
		return nil, err
	}
	if s.mark.Position != v.snap.Position() {
		return nil, fault.Retry(nil, "the mark at %s lies behind the snapshot at %s", s.mark.Position, v.snap.Position())
	}
	for i, b := range list {
		if v.results[i], v.done[i], err = s.withoutScan(work, b); err != nil {
			return nil, err
		}
	}
	v.view, err = views.View(work)
	return v, err
}

func (v *verification) close() {
	if v.view != nil {
		v.view.Close(context.Background())
	}
	if v.snap != nil {
		v.session.close("snapshot", v.snap.Close)
	}
}

// chosen lists the first flow into each of the named targets, or of all.
func (s *session) chosen(tables []string) (list []*Bound, err error) {
	for _, name := range tables {
		if !slices.ContainsFunc(s.bound, func(b Bound) bool { return named(name, &b) }) {
			return nil, fault.Badly("--table %s: no flow has such a target", name)
		}
	}
	for i := range s.bound {
		b := &s.bound[i]
		if !b.second && (len(tables) == 0 || slices.ContainsFunc(tables, func(name string) bool { return named(name, b) })) {
			list = append(list, b)
		}
	}
	return list, nil
}

// withoutScan gives the result for targets that are not compared with rows of the
// source; done is false for the others.
func (s *session) withoutScan(ctx context.Context, b *Bound) (result Comparison, done bool, err error) {
	switch st := s.state(b.Target.Name); {
	case st.Phase == checkpoint.Parked:
		return Comparison{Target: b.Target.Name, Skipped: "parked: " + st.Reason}, true, nil
	case b.Spec.Once && b.flow == nil:
		return Comparison{Target: b.Target.Name, Once: true}, true, nil
	case b.flow != nil:
		if result, err = s.verifyEvents(ctx, b); err != nil {
			err = fmt.Errorf("verify %s: %w", b.Target.Name, err)
		}
		return result, true, err
	}
	return Comparison{}, false, nil
}

// compare compares a target with its source's rows in a snapshot.
func (s *session) compare(ctx context.Context, b *Bound, snap source.Snapshot, target sink.Reader) (Comparison, error) {
	v := verifier{session: s, b: b, snap: snap, target: target, keyed: !b.Target.AppendOnly, result: Comparison{Target: b.Target.Name}}
	v.expected, v.held = v.readSource, v.readTarget
	if err := v.run(ctx); err != nil {
		return Comparison{}, fmt.Errorf("verify %s: %w", b.Target.Name, err)
	}
	return v.result, nil
}

// reading reads one side of a comparison: of each row its key, the whole (key in front
// or not), and what names the key for a person; all valid during the call.
type reading func(ctx context.Context, fn func(key, row []byte, name func() string) error) error

// verifier compares one target with what it must hold. First both sides are reduced to sums of row hashes
// in buckets chosen by the key; only buckets whose sums differ are read again, a
// bounded number of keys at a time. So memory does not grow with the table.
type verifier struct {
	*session
	b      *Bound
	snap   source.Snapshot
	target sink.Reader
	seed   [2]maphash.Seed
	keyed  bool
	binary bool // the form of this target's canonical rows, whatever the log's is
	result Comparison

	expected, held reading
}

const (
	verifyBuckets = 1 << 14
	// Keys held at once when differing buckets are read again: about 100 MB.
	verifyKeys = 1 << 20
	// Enough to see a pattern; a table that differs everywhere is not listed.
	verifyExamples = 20
	verifyEnough   = 100_000
)

type digest struct{ a, b uint64 }

type bucket struct {
	digest
	rows int64
}

func (v *verifier) run(ctx context.Context) error {
	v.seed = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	v.binary = BinaryForm([]Bound{*v.b}, v.dst)
	here, there := make([]bucket, verifyBuckets), make([]bucket, verifyBuckets)
	tally := func(into []bucket) func(key, row []byte, _ func() string) error {
		return func(key, row []byte, _ func() string) error {
			d := v.digest(row)
			k := &into[v.bucket(key, row)]
			k.a, k.b, k.rows = k.a+d.a, k.b+d.b, k.rows+1
			return nil
		}
	}
	if err := v.expected(ctx, tally(here)); err != nil {
		return err
	}
	if err := v.held(ctx, tally(there)); err != nil {
		return err
	}
	var differing []int
	for i := range here {
		v.result.Rows += here[i].rows
		if here[i] != there[i] {
			differing = append(differing, i)
		}
	}
	if !v.keyed {
		for _, i := range differing {
			v.result.Differences += max(1, abs(here[i].rows-there[i].rows))
		}
		if len(differing) > 0 {
			v.result.Examples = []string{"rows without a key cannot be named"}
		}
	} else if err := v.name(ctx, differing, here, there); err != nil {
		return err
	}
	violations, err := v.target.Invariants(ctx, v.b.Target)
	if err != nil {
		return fmt.Errorf("check invariants: %w", err)
	}
	v.result.Violations = violations
	return nil
}

func abs(n int64) int64 { return max(n, -n) }

func (v *verifier) digest(row []byte) digest {
	return digest{maphash.Bytes(v.seed[0], row), maphash.Bytes(v.seed[1], row)}
}

func (v *verifier) bucket(key, row []byte) int {
	if !v.keyed {
		key = row
	}
	return int(maphash.Bytes(v.seed[0], key) % verifyBuckets)
}

// name reads the differing buckets again and names keys.
func (v *verifier) name(ctx context.Context, differing []int, here, there []bucket) error {
	for len(differing) > 0 {
		if v.result.Differences >= verifyEnough {
			v.result.Cut = true
			return nil
		}
		wanted := make([]bool, verifyBuckets)
		var keys int64
		n := 0
		for n < len(differing) && (n == 0 || keys < verifyKeys) {
			wanted[differing[n]] = true
			keys += max(here[differing[n]].rows, there[differing[n]].rows)
			n++
		}
		differing = differing[n:]
		type seen struct {
			digest
			text  string
			count int
		}
		source := map[string]*seen{}
		err := v.expected(ctx, func(key, row []byte, name func() string) error {
			if wanted[v.bucket(key, row)] {
				source[string(key)] = &seen{digest: v.digest(row), text: name()}
			}
			return nil
		})
		if err != nil {
			return err
		}
		differ := func(key, what string) {
			v.result.Differences++
			if len(v.result.Examples) < verifyExamples {
				v.result.Examples = append(v.result.Examples, key+": "+what)
			}
		}
		err = v.held(ctx, func(key, row []byte, name func() string) error {
			if !wanted[v.bucket(key, row)] {
				return nil
			}
			s := source[string(key)]
			switch {
			case s == nil:
				differ(name(), "only in the destination")
			case s.count > 0:
				differ(s.text, "more than once in the destination")
			case s.digest != v.digest(row):
				differ(s.text, "values differ")
			}
			if s != nil {
				s.count++
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, s := range source {
			if s.count == 0 {
				differ(s.text, "missing in the destination")
			}
		}
	}
	return nil
}

func (v *verifier) readSource(ctx context.Context, fn func(key, row []byte, name func() string) error) error {
	t := v.b.Target
	req := source.CopyRequest{Table: v.b.Relation.Table, Binary: v.binary}
	for _, c := range t.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := v.snap.Copy(ctx, req, pw)
		pw.CloseWithError(err)
		ended <- err
	}()
	err := func() error {
		rows := copystream.NewReader(pr, v.binary, len(t.Columns))
		var form []byte
		var row change.Row
		name := func() string { return v.keyText(row) }
		for {
			var err error
			row, err = rows.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			var n int
			if form, n, err = v.dst.Canonical(t, row, form[:0]); err != nil {
				return err
			}
			if err := fn(form[:n], form, name); err != nil {
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
	var of []byte
	name := func() string { return printable(of) }
	err := v.target.Scan(ctx, v.b.Target, func(key, row []byte) error {
		of = key
		return fn(key, row, name)
	})
	if err != nil {
		return fmt.Errorf("read the destination: %w", err)
	}
	return nil
}

// keyText spells a key for a person.
func (v *verifier) keyText(row change.Row) string {
	var parts []string
	values, err := row.Values(nil, len(v.b.Target.Columns))
	if err != nil {
		return "?"
	}
	for _, k := range v.b.Target.Keys() {
		c := &v.b.Target.Columns[k]
		text, err := pgvalue.Text(nil, values[k], c.Type)
		if err != nil {
			text = []byte("?")
		}
		parts = append(parts, c.Name+"="+string(text))
	}
	return strings.Join(parts, " ")
}

func printable(key []byte) string {
	if utf8.Valid(key) && strings.IndexFunc(string(key), func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return "key " + string(key)
	}
	return fmt.Sprintf("key %x", key)
}
