package files_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"tailrace/source/files"
)

func TestArrivals(t *testing.T) {
	for _, path := range []string{"landing", "landing/", "landing/*.csv", "**/*.csv", "landing/a.csv"} {
		t.Run(path, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "landing"), 0o700); err != nil {
				t.Fatal(err)
			}
			now := time.Now()
			put := func(name, text string, at time.Time) {
				t.Helper()
				full := filepath.Join(root, name)
				if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(full, at, at); err != nil {
					t.Fatal(err)
				}
			}
			a, err := files.NewArrivals(root, path)
			if err != nil {
				t.Fatal(err)
			}
			a.Now = func() time.Time { return now }
			look := func(want string) {
				t.Helper()
				got, err := a.Look(t.Context())
				if err != nil || filepath.Base(got) != want && want+got != "" {
					t.Errorf("arrived: %q %v, want %q", got, err, want)
				}
			}
			begin := func() {
				t.Helper()
				if err := a.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			begin()
			look("")
			put("landing/_temporary.csv", "x", now.Add(-time.Hour))
			put("landing/.hidden.csv", "x", now.Add(-time.Hour))
			put("elsewhere.txt", "x", now.Add(-time.Hour))
			look("")
			put("landing/a.csv", "1", now) // being written
			look("")
			put("landing/a.csv", "12", now)
			look("") // it grew
			look("")
			look("a.csv") // two looks have found it as it was
			begin()
			look("")
			put("landing/a.csv", "12", now.Add(time.Second)) // again, under its name
			now = now.Add(time.Minute)
			look("a.csv") // its time says that it rests
			begin()
			look("")
			if err := os.Remove(filepath.Join(root, "landing/a.csv")); err != nil {
				t.Fatal(err)
			}
			look("")
		})
	}
	if _, err := files.NewArrivals(".", "a["); err == nil {
		t.Error("a pattern without its ] is taken")
	}
	a, err := files.NewArrivals(t.TempDir(), "nowhere/x")
	if err != nil {
		t.Fatal(err)
	}
	if name, err := a.Look(t.Context()); name != "" || err != nil {
		t.Errorf("a folder that is not there: %q %v", name, err)
	}
}
