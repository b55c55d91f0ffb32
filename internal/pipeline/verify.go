package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
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
		for _, name := range tables {
			found := false
			for i := range s.bound {
				found = found || named(name, &s.bound[i])
			}
			if !found {
				return fault.Badly("--table %s: no flow has such a target", name)
			}
		}
		for i := range s.bound {
			b := &s.bound[i]
			if len(tables) > 0 && !func() bool {
				for _, name := range tables {
					if named(name, b) {
						return true
					}
				}
				return false
			}() {
				continue
			}
			st := s.state(b.Target.Name)
			if st.Phase == checkpoint.Parked {
				report(Comparison{Target: b.Target.Name, Skipped: "parked: " + st.Reason})
				continue
			}
			if b.second {
				continue
			}
			if b.Spec.Once && b.flow == nil {
				report(Comparison{Target: b.Target.Name, Once: true})
				continue
			}
			if b.flow != nil {
				result, err := s.verifyEvents(ctx, b)
				if err != nil {
					return fmt.Errorf("verify %s: %w", b.Target.Name, err)
				}
				report(result)
				continue
			}
			v := verifier{session: s, b: b, snap: snap, keyed: !b.Target.AppendOnly, result: Comparison{Target: b.Target.Name}}
			v.expected, v.held = v.readSource, v.readTarget
			if err := v.run(ctx); err != nil {
				return fmt.Errorf("verify %s: %w", b.Target.Name, err)
			}
			report(v.result)
		}
		return nil
	}})
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
	violations, err := v.dst.Invariants(ctx, v.b.Target)
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
	err := v.dst.Scan(ctx, v.b.Target, func(key, row []byte) error {
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
