package pipeline

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

func TestMomentsAreReadByTheirForm(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]Moment{
		"3":             {Number: 3},
		" 12 ":          {Number: 12},
		"16/B374D848":   {Position: change.LSN(0x16B374D848)},
		"0:7:120":       {Position: change.Position{File: 7, Offset: 120}},
		"0-1-100":       {GTIDs: "0-1-100"},
		"0-1-100,1-2-3": {GTIDs: "0-1-100,1-2-3"},
		"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5": {GTIDs: "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"},
		"2026-11-30T12:00:00Z":                     {Time: noon},
		"2026-11-30 14:00:00.5+02:00":              {Time: noon.Add(500 * time.Millisecond)},
		"before the deploy":                        {Label: "before the deploy"},
		"v1.2":                                     {Label: "v1.2"},
		"0":                                        {Label: "0"},
		"-3":                                       {Label: "-3"},
	} {
		m, err := ParseMoment(text)
		want.Text = strings.TrimSpace(text)
		if err != nil || !m.Time.Equal(want.Time) {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
		m.Time, want.Time = time.Time{}, time.Time{}
		if m != want {
			t.Errorf("%q: %+v, want %+v", text, m, want)
		}
	}
	for _, text := range []string{"", " ", "2026-11-30", "2026-11-30T12:00:00", "2026-11-30 noon"} {
		if m, err := ParseMoment(text); fault.KindOf(err) != fault.Usage {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
	}
	for label, good := range map[string]bool{"": true, "deploy-7": true, "7": false, "0/1": false, "2026-11-30T12:00:00Z": false, "2026-11-30": false, "0-1-2": false, strings.Repeat("x", 201): false, " x": false} {
		if err := CheckLabel(label); (err == nil) != good {
			t.Errorf("label %q: %v", label, err)
		}
	}
}

// named is a source whose transactions have names: a resume is one if it is a letter that
// the set holds.
type namedSource struct{ source.Source }

func (namedSource) Covers(set, resume string) (bool, error) { return resume <= set[:1], nil }

func TestTheNewestPointAtOrBeforeAMomentIsChosen(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 11, 30, 12, 0, s, 0, time.UTC) }
	point := func(number int64, lsn uint64, commit time.Time, label string, gone bool) checkpoint.Point {
		return checkpoint.Point{Number: number, Label: label, Gone: gone, Made: at(0),
			Mark: checkpoint.Mark{Position: change.LSN(lsn), CommitTime: commit, Resume: string(rune('0' + number))}}
	}
	points := []checkpoint.Point{
		point(2, 100, time.Time{}, "", false), point(3, 200, at(10), "twice", false), point(4, 300, at(10), "", true),
		point(5, 250, at(20), "twice", false), point(6, 400, at(20), "deploy", false),
	}
	mark := checkpoint.Mark{Position: change.LSN(500), CommitTime: at(30), Resume: "9"}
	for text, want := range map[string]string{
		"3": "3", "6": "6", "deploy": "6", "4": "refused", "9": "refused", "twice": "bad", "nothing": "refused",
		"0/C8": "3", "0/C7": "2", "0/FA": "5", "0/18F": "5", "0/190": "6", "0/1F3": "6", "0/1F4": "now", "0/FFFF": "now", "0/63": "refused",
		"2026-11-30T12:00:10Z": "3", "2026-11-30T12:00:09.999Z": "2", "2026-11-30T12:00:20Z": "6", "2026-11-30T12:00:29Z": "6",
		"2026-11-30T12:00:30Z": "now", "2026-11-30T11:59:59Z": "refused",
		"5-0-0": "5", "4-0-0": "3", "9-0-0": "now", "1-0-0": "refused",
	} {
		m, err := ParseMoment(text)
		if err != nil {
			t.Fatal(err)
		}
		p, now, err := m.choose(points, &mark, namedSource{})
		got := fmt.Sprint(p.Number)
		switch {
		case fault.KindOf(err) == fault.Operator:
			got = "refused"
		case err != nil:
			got = "bad"
		case now:
			got = "now"
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", text, got, err, want)
		}
		if err != nil && got == "refused" && fault.RemedyOf(err) == "" {
			t.Errorf("%s: no remedy: %v", text, err)
		}
	}
	m, _ := ParseMoment("0/C8")
	if _, _, err := m.choose(nil, &mark, nil); !errors.Is(err, errNoPoints) {
		t.Errorf("no points: %v", err)
	}
}

func TestTheOldestPointGoesWhereABoundIsExceeded(t *testing.T) {
	now := time.Now()
	old := checkpoint.Point{Number: 1, Made: now.Add(-25 * time.Hour), Mark: checkpoint.Mark{Position: change.LSN(10)}}
	young := checkpoint.Point{Number: 2, Made: now.Add(-time.Hour), Mark: checkpoint.Mark{Position: change.LSN(20)}}
	r := Rewinding{Every: time.Hour, Keep: 24 * time.Hour, MaxLog: 1 << 30, MaxUndo: 1 << 30}
	for _, c := range []struct {
		what string
		list []checkpoint.Point
		undo int64
		kept *measure
		want string
	}{
		{"its time is over", []checkpoint.Point{old, young}, 0, nil, "older than rewind.keep"},
		{"the newest stays", []checkpoint.Point{old}, 0, nil, ""},
		{"within all", []checkpoint.Point{young, young}, 1 << 30, &measure{source.Kept{Bytes: 1 << 30}, young.Mark.Position}, ""},
		{"the destination keeps too much", []checkpoint.Point{young, young}, 1<<30 + 1, nil, "rewind.max_undo"},
		{"the source keeps too much", []checkpoint.Point{young, young}, 0, &measure{source.Kept{Bytes: 1<<30 + 1}, young.Mark.Position}, "rewind.max_wal"},
		{"measured before the last one went", []checkpoint.Point{young, young}, 0, &measure{source.Kept{Bytes: 1<<30 + 1}, old.Mark.Position}, ""},
	} {
		p := &points{Rewinding: r, list: c.list, stats: &Stats{}, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		p.stats.Undo.Store(c.undo)
		p.kept.Store(c.kept)
		if got := p.exceeded(now); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
