package spool

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/fault"
)

func opened(t testing.TB, max int64) (*Spool, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deep", "spool")
	s, err := Open(dir, "shop", max)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

func put(t testing.TB, s *Spool, id uint64, records ...string) {
	t.Helper()
	for _, r := range records {
		if err := s.Append(id, []byte(r[:len(r)/2]), nil, []byte(r[len(r)/2:])); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t testing.TB, s *Spool, id uint64) []string {
	t.Helper()
	r, err := s.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	var records []string
	for {
		data, err := r.Next()
		if err == io.EOF {
			return records
		}
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, string(data))
	}
}

func want(t testing.TB, s *Spool, id uint64, records ...string) {
	t.Helper()
	if got := read(t, s, id); !slices.Equal(got, records) {
		t.Errorf("transaction %d: %.200q, want %.200q", id, got, records)
	}
}

func TestTransactionsGrowSideBySide(t *testing.T) {
	s, _ := opened(t, 1<<30)
	large := strings.Repeat("x", 3*blockBytes+5)
	put(t, s, 1, "a", "", "b")
	put(t, s, 2, "c", large)
	put(t, s, 1, "d")
	put(t, s, 2, "e")
	want(t, s, 2, "c", large, "e")
	want(t, s, 1, "a", "", "b", "d")
	want(t, s, 1, "a", "", "b", "d") // as often as one likes
	want(t, s, 3)
}

func TestSavepointsAreTakenBack(t *testing.T) {
	for name, size := range map[string]int{"in the buffer": 10, "in blocks": blockBytes - 100, "over blocks": 2 * blockBytes} {
		t.Run(name, func(t *testing.T) {
			s, _ := opened(t, 1<<30)
			rec := func(what string) string { return what + strings.Repeat(".", size) }
			back := func(savepoint uint64) {
				t.Helper()
				if err := s.Back(1, savepoint); err != nil {
					t.Fatal(err)
				}
			}
			put(t, s, 1, rec("a"))
			s.Mark(1, 10)
			put(t, s, 1, rec("b"))
			s.Mark(1, 11)
			put(t, s, 1, rec("c"))
			s.Mark(1, 10) // the outer one goes on: its place stays
			put(t, s, 1, rec("d"))
			put(t, s, 2, rec("other"))
			back(99)
			want(t, s, 1, rec("a"), rec("b"), rec("c"), rec("d"))
			back(11)
			want(t, s, 1, rec("a"), rec("b"))
			back(11)
			put(t, s, 1, rec("e"))
			s.Mark(1, 12)
			s.Mark(1, 13)
			put(t, s, 1, rec("f"))
			back(13)
			want(t, s, 1, rec("a"), rec("b"), rec("e"))
			back(10)
			back(12)
			want(t, s, 1, rec("a"))
			put(t, s, 1, rec("g"))
			want(t, s, 1, rec("a"), rec("g"))
			want(t, s, 2, rec("other"))
		})
	}
}

func TestRoomIsUsedAgainAndGivenBack(t *testing.T) {
	s, _ := opened(t, 1<<30)
	block := strings.Repeat("x", blockBytes-lengthBytes)
	onDisk := func() int64 {
		t.Helper()
		info, err := s.file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > s.Size() {
			t.Errorf("the file has %d bytes, the spool counts %d", info.Size(), s.Size())
		}
		return info.Size() / blockBytes
	}
	for id := uint64(1); id <= 4; id++ {
		put(t, s, id, block, block)
	}
	want(t, s, 4, block, block) // all are written
	if n := onDisk(); n != 8 {
		t.Errorf("%d blocks", n)
	}
	drop := func(id uint64) {
		t.Helper()
		if err := s.Drop(id); err != nil {
			t.Fatal(err)
		}
	}
	drop(2)
	put(t, s, 5, block)
	want(t, s, 5, block)
	if n := onDisk(); n != 8 {
		t.Errorf("%d blocks after one was used again", n)
	}
	drop(4)
	drop(3)
	if n := onDisk(); n != 3 {
		t.Errorf("%d blocks after the end was dropped", n)
	}
	drop(1)
	drop(5)
	drop(5)
	if n := onDisk(); n != 0 {
		t.Errorf("%d blocks after all were dropped", n)
	}
}

func TestFullSpoolIsTheOperators(t *testing.T) {
	s, _ := opened(t, Least)
	block := make([]byte, blockBytes)
	var err error
	for range 2 * Least / blockBytes {
		if err = s.Append(1, block); err != nil {
			break
		}
	}
	remedy := fault.RemedyOf(err)
	if fault.KindOf(err) != fault.Operator || !strings.Contains(remedy, "source.spool_max") || !strings.Contains(remedy, "source.spool_dir") {
		t.Errorf("%v", err)
	}
	if s.Size() > Least {
		t.Errorf("%d bytes", s.Size())
	}
}

func TestManyTransactionsTakeOneFileAndLittleMemory(t *testing.T) {
	s, _ := opened(t, 1<<30)
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := files()
	const many = 1000
	for round := range 3 {
		for id := range uint64(many) {
			put(t, s, id, fmt.Sprint(round, id))
		}
	}
	if n := files(); n > before {
		t.Errorf("%d files more than before", n-before)
	}
	if cap(s.buffer) != blockBytes {
		t.Errorf("a buffer of %d", cap(s.buffer))
	}
	for id := range uint64(many) {
		want(t, s, id, fmt.Sprint(0, id), fmt.Sprint(1, id), fmt.Sprint(2, id))
	}
}

func TestNothingStaysOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	names := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	s, err := Open(dir, "shop", Least)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.file.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	ours := filepath.Base(s.file.Name())
	if len(names()) != 0 { // on the systems that tests run on
		t.Errorf("left while open: %v", names())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// What a kill could leave elsewhere goes at the next start; what is not ours stays.
	other, err := Open(dir, "shop 2", Least)
	if err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Base(other.file.Name())
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ours, theirs, ours + ".txt", "precious"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = Open(dir, "shop", Least); err != nil {
		t.Fatal(err)
	}
	s.Close()
	left := names()
	slices.Sort(left)
	kept := []string{theirs, ours + ".txt", "precious"}
	slices.Sort(kept)
	if !slices.Equal(left, kept) {
		t.Errorf("left %v, want %v", left, kept)
	}
}

func TestFolderThatWasMadeGoesToo(t *testing.T) {
	s, dir := opened(t, Least)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	put(t, s, 1, "a")
	want(t, s, 1, "a")
	if again, err := Open(dir, "shop", Least); err != nil {
		t.Error(err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnusableFolderIsTheOperators(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(file, "spool"), "shop", Least)
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "source.spool_dir") {
		t.Errorf("%v", err)
	}
}

// A disk that is full says so, with what to do. /dev/full is one.
func TestFullDiskIsTheOperators(t *testing.T) {
	s, _ := opened(t, 1<<30)
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.file.Close()
	s.file = full
	for range 3 {
		if err = errors.Join(err, s.Append(1, make([]byte, blockBytes))); err != nil {
			break
		}
	}
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "source.spool_dir") || strings.Contains(err.Error(), "/dev/full") {
		t.Errorf("%v", err)
	}
}

// Whatever is done in whatever order, each transaction reads back as a list in
// memory would.
func TestSpoolEqualsListsInMemory(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s, _ := opened(t, 1<<30)
	type list struct {
		records []string
		marks   map[uint64]int
	}
	lists := map[uint64]*list{}
	for step := range 3000 {
		id := uint64(rnd.IntN(8))
		l := lists[id]
		if l == nil {
			l = &list{marks: map[uint64]int{}}
			lists[id] = l
		}
		switch n := rnd.IntN(20); {
		case n < 11:
			size := rnd.IntN(200)
			if rnd.IntN(40) == 0 {
				size = rnd.IntN(2 * blockBytes)
			}
			r := fmt.Sprint(step, strings.Repeat("x", size))
			put(t, s, id, r)
			l.records = append(l.records, r)
		case n < 15:
			savepoint := uint64(rnd.IntN(30))
			s.Mark(id, savepoint)
			if _, known := l.marks[savepoint]; !known {
				l.marks[savepoint] = len(l.records)
			}
		case n < 17:
			savepoint := uint64(rnd.IntN(30))
			if err := s.Back(id, savepoint); err != nil {
				t.Fatal(err)
			}
			if at, known := l.marks[savepoint]; known {
				l.records = l.records[:at]
				for m, place := range l.marks {
					if place >= at {
						delete(l.marks, m)
					}
				}
			}
		case n < 19:
			want(t, s, id, l.records...)
		case rnd.IntN(3) == 0:
			if err := s.Drop(id); err != nil {
				t.Fatal(err)
			}
			delete(lists, id)
		}
		if t.Failed() {
			t.Fatalf("at step %d", step)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	s, _ := opened(t, 1<<30)
	a, b := []byte{'I'}, make([]byte, 60)
	put(t, s, 1, "first")
	if n := testing.AllocsPerRun(1000, func() {
		if err := s.Append(1, a, b, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a record", n)
	}
}
