package mysql

import (
	"testing"

	"tailrace/internal/fault"
)

func TestGTIDsCoverWhatADestinationHas(t *testing.T) {
	const uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	for _, c := range []struct {
		set, resume string
		want, bad   bool
	}{
		{"0-1-100", "b.000001 5 0-1-100", true, false},
		{"0-1-100", "b.000001 5 0-2-99", true, false},
		{"0-1-100", "b.000001 5 0-1-101", false, false},
		{"0-1-100", "b.000001 5 0-1-99,1-1-1", false, false},
		{"0-1-100, 1-1-1", "b.000001 5 0-1-99,1-1-1", true, false},
		{uuid + ":1-100", "b.000001 5 " + uuid + ":1-100", true, false},
		{uuid + ":1-100", "b.000001 5 " + uuid + ":1-99 " + uuid + ":101", false, false},
		{uuid + ":5-100", "b.000001 5 " + uuid + ":1-99", false, false},
		{"0-1-100", "", false, false},
		{"0-1-100", "b.000001 5 ", false, true},
		{"0-1", "", false, true},
		{uuid + ":x", "", false, true},
	} {
		got, err := covers(c.set, c.resume)
		if got != c.want || (err != nil) != c.bad || err != nil && fault.KindOf(err) != fault.Usage {
			t.Errorf("covers(%q, %q) = %v, %v", c.set, c.resume, got, err)
		}
	}
}
