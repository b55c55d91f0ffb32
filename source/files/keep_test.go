package files_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/source"
	"tailrace/source/files"
)

func TestFilesThatCannotBeTakenAgainAsTheyWereAreNamed(t *testing.T) {
	r := newRig(t, files.Relation{Name: "feed", Path: "in/**/*.jsonl", Format: files.JSONLines, Columns: columns("v", "text")},
		files.Relation{Name: "timed", Path: "timed/*.csv", Format: files.CSV, Order: files.ByTime, Columns: columns("v", "text")},
		files.Relation{Name: "whole", Path: "once/*.jsonl", Format: files.JSONLines, Columns: columns("v", "text"), Once: true})
	at := time.Now().Add(-time.Hour)
	for _, name := range []string{"same", "deep/same", "touched", "gone", "longer", "other"} {
		r.writeAt("in/"+name+".jsonl", `{"v": "`+name+`"}`+"\n", at)
	}
	r.writeAt("timed/same.csv", "v\na\n", at)
	r.writeAt("timed/moved.csv", "v\nb\n", at)
	r.writeAt("once/one.jsonl", `{"v": "x"}`+"\n", at)
	taken := r.drain(source.FollowOptions{}).taken()
	if len(taken) != 10 { // with the entry that says that one relation ended
		t.Fatalf("%d files taken", len(taken))
	}
	ctx := context.Background()
	if problems, err := r.source().Unchanged(ctx, taken); err != nil || len(problems) != 0 {
		t.Fatalf("nothing was done: %v, %v", problems, err)
	}

	later := at.Add(time.Minute)
	r.writeAt("in/touched.jsonl", `{"v": "touched"}`+"\n", later) // the order of this relation is the path's
	r.writeAt("in/longer.jsonl", `{"v": "longer"}`+"\n\n", at)
	r.writeAt("in/other.jsonl", `{"v": "0ther"}`+"\n", at)
	r.writeAt("timed/moved.csv", "v\nb\n", later)
	if err := os.Remove(filepath.Join(r.root, "in/gone.jsonl")); err != nil {
		t.Fatal(err)
	}
	taken = append(taken, change.File{Relation: change.Name{Table: "removed"}, Path: "a", Size: 1})
	problems, err := r.source().Unchanged(ctx, taken)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, p.File.Relation.Table+"/"+p.File.Path+" "+p.What)
	}
	want := []string{
		"feed/gone.jsonl is gone",
		"feed/longer.jsonl has 17 bytes, and had 16 when it was taken",
		"feed/other.jsonl has another content than when it was taken",
		"timed/moved.csv is of " + later.UTC().Format("2006-01-02 15:04"),
		"removed/a belongs to a relation that is not in the configuration",
	}
	if len(got) != len(want) {
		t.Fatalf("problems:\n%s", strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("problem %d: %s, want %s", i, got[i], want[i])
		}
	}

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.source().Unchanged(cancelled, taken); err == nil {
		t.Error("went on without its context")
	}
}

func TestFilesKeepNothingAndLoseNothing(t *testing.T) {
	r := newRig(t)
	var k source.Keeper = r.source()
	ctx := context.Background()
	if err := k.Keep(ctx, change.Position{Offset: 3}); err != nil {
		t.Error(err)
	}
	kept, err := k.Kept(ctx)
	same(t, "kept", fmt.Sprint(kept, err), fmt.Sprint(source.Kept{Exists: true}, nil))
	if err := k.Return(ctx, change.Position{Offset: 1}); err != nil {
		t.Error(err)
	}
}
