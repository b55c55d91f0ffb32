package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The story of examples/rewind: what a wrong condition did is undone, and done right.
func TestTheStoryOfARewind(t *testing.T) {
	t.Parallel()
	c := exec.Command("sh", "../../examples/rewind/story.sh")
	c.Env = append(os.Environ(), "TAILRACE="+binary(t))
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := strings.Split(string(out), "id  customer  total")
	wants := []string{
		"1   Ines      40\n2   Omar      25\n3   Ruth      99\n",
		"2   Omar      25\n",
		"1   Ines      40\n2   Omar      25\n3   Ruth      99\n",
		"1   Ines      44\n2   Omar      25\n4   Tomas     65\n",
		"  __START_AT  __END_AT\n1   Ines      40     1           5\n1   Ines      44     5           NULL\n2   Omar      15     2           4\n2   Omar      25     4           NULL\n3   Ruth      99     3           6\n4   Tomas     60     7           8\n4   Tomas     65     8           NULL\n",
	}
	if len(shown) != len(wants)+1 {
		t.Fatalf("%d tables are shown:\n%s", len(shown)-1, out)
	}
	for i, want := range wants {
		if got := strings.TrimLeft(shown[i+1], "\n"); !strings.HasPrefix(got, strings.TrimLeft(want, "\n")) {
			t.Errorf("table %d:\n%s\nwant\n%s", i+1, got, want)
		}
	}
}
