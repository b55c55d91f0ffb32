package checkpoint

import (
	"testing"

	"tailrace/internal/change"
)

func TestPlaceIsReadAsItWasWritten(t *testing.T) {
	for _, c := range []struct {
		position     change.Position
		resume, text string
	}{
		{change.LSN(0x16B374D848), "", "16/B374D848"},
		{change.Position{}, "", "0/0"},
		{change.Position{File: 7, Offset: 5 << 32}, "binlog.000007 1764512345 0-1-100,1-2-5", "0:7:21474836480 binlog.000007 1764512345 0-1-100,1-2-5"},
	} {
		if got := PlaceText(c.position, c.resume); got != c.text {
			t.Errorf("PlaceText(%v, %q) = %q, want %q", c.position, c.resume, got, c.text)
		}
		p, resume, err := ParsePlace(c.text)
		if err != nil || p != c.position || resume != c.resume {
			t.Errorf("ParsePlace(%q) = %v, %q, %v", c.text, p, resume, err)
		}
	}
	if _, _, err := ParsePlace("nonsense"); err == nil {
		t.Error("nonsense is a place")
	}
}
