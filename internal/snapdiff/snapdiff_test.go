package snapdiff

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/fault"
)

// both gives two sides, keys to rows, and returns what was found.
func both(t *testing.T, snapshot, target map[string]string) (c Counts, rows, gone []string) {
	t.Helper()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for k, v := range snapshot {
		if err := d.Snapshot([]byte(k), []byte(k+"="+v), []byte("row "+k+"="+v)); err != nil {
			t.Fatal(err)
		}
	}
	for k, v := range target {
		if err := d.Held([]byte(k), []byte(k+"="+v), []byte("key "+k)); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = d.Compare(context.Background()); err != nil {
		t.Fatal(err)
	}
	err = d.Each(func(b []byte) error { rows = append(rows, string(b)); return nil }, func(b []byte) error { gone = append(gone, string(b)); return nil })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(rows)
	slices.Sort(gone)
	return c, rows, gone
}

func TestRowsAreNewChangedGoneOrTheSame(t *testing.T) {
	c, rows, gone := both(t,
		map[string]string{"a": "1", "b": "2", "c": "3", "": "empty"},
		map[string]string{"a": "1", "b": "1", "d": "4"})
	if want := (Counts{Snapshot: 4, Held: 3, Same: 1, New: 2, Changed: 1, Gone: 1}); c != want {
		t.Errorf("counts %+v, want %+v", c, want)
	}
	if got := fmt.Sprint(rows, gone); got != "[row =empty row b=2 row c=3] [key d]" {
		t.Error(got)
	}
}

func TestEmptySidesCompare(t *testing.T) {
	if c, rows, gone := both(t, nil, nil); c != (Counts{}) || rows != nil || gone != nil {
		t.Errorf("%+v %v %v", c, rows, gone)
	}
	if c, _, gone := both(t, nil, map[string]string{"a": "1"}); c.Gone != 1 || len(gone) != 1 {
		t.Errorf("%+v %v", c, gone)
	}
}

func TestKeysThatStandTwiceAreCounted(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, v := range []string{"A", "B", "A"} {
		if err := d.Snapshot([]byte("k"), []byte(v), []byte(v)); err != nil {
			t.Fatal(err)
		}
		if err := d.Held([]byte("h"), []byte(v), []byte("h")); err != nil {
			t.Fatal(err)
		}
	}
	c, err := d.Compare(context.Background())
	if err != nil || c.DuplicateSnapshot != 2 || c.DuplicateHeld != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// The differences are those of two maps, whatever they hold.
func TestDifferencesAreThoseOfTwoMaps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 30 {
		side := func() map[string]string {
			m := map[string]string{}
			for range r.IntN(3000) {
				m[strings.Repeat("k", r.IntN(3))+fmt.Sprint(r.IntN(2000))] = strings.Repeat("v", r.IntN(300)) + fmt.Sprint(r.IntN(3))
			}
			return m
		}
		snapshot, target := side(), side()
		for k, v := range target {
			if r.IntN(2) == 0 {
				snapshot[k] = v
			}
		}
		var wantRows, wantGone []string
		same := int64(0)
		for k, v := range snapshot {
			if target[k] == v && v != "" {
				same++
			} else {
				wantRows = append(wantRows, "row "+k+"="+v)
			}
		}
		for k := range target {
			if _, there := snapshot[k]; !there {
				wantGone = append(wantGone, "key "+k)
			}
		}
		slices.Sort(wantRows)
		slices.Sort(wantGone)
		c, rows, gone := both(t, snapshot, target)
		if !slices.Equal(rows, wantRows) || !slices.Equal(gone, wantGone) || c.Same != same || c.Differs() != int64(len(rows)+len(gone)) {
			t.Fatalf("counts %+v: %d rows of %d, %d gone of %d", c, len(rows), len(wantRows), len(gone), len(wantGone))
		}
	}
}

func TestNothingStaysOnDisk(t *testing.T) {
	dir := t.TempDir()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Snapshot([]byte("k"), []byte("f"), make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("files while it is open: %v, %v", left, err)
	}
	d.Close()
	d.Close()
}

func TestAFolderThatIsNotThereIsTheOperators(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "nowhere"))
	if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "spool_dir") {
		t.Errorf("%v", err)
	}
}

func BenchmarkCompare(b *testing.B) {
	d, err := Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	row := make([]byte, 100)
	for i := range b.N {
		key := fmt.Appendf(nil, "%012d", i)
		copy(row, key)
		if err := d.Held(key, row, key); err != nil {
			b.Fatal(err)
		}
		if i%100 == 0 {
			row[50]++
		}
		if err := d.Snapshot(key, row, row); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := d.Compare(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// A row that does not count is neither there nor gone, whichever side comes first; another
// row of its key is what it is.
func TestKeysOfRowsThatDoNotCountStay(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, k := range []string{"a", "b", "c"} {
		if err := d.Held([]byte(k), []byte(k+"=1"), []byte(k)); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range [][]byte{[]byte("a"), []byte("b"), []byte("new"), []byte("a"), nil} {
		if err := d.Kept(k); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Snapshot([]byte("b"), []byte("b=2"), []byte("b=2")); err != nil {
		t.Fatal(err)
	}
	c, err := d.Compare(context.Background())
	if want := (Counts{Snapshot: 1, Held: 3, Dropped: 5, Changed: 1, Gone: 1}); err != nil || c != want {
		t.Errorf("counts %+v, want %+v, %v", c, want, err)
	}
	var got []string
	note := func(b []byte) error { got = append(got, string(b)); return nil }
	err = d.Each(note, note)
	slices.Sort(got)
	if err != nil || fmt.Sprint(got) != "[b=2 c]" {
		t.Errorf("%q, %v", got, err)
	}
}
