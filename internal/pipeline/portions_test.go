package pipeline

import "testing"

// Portions grow where keys have little, and shrink to one key where one has much.
func TestPortionsFollowWhatKeysHold(t *testing.T) {
	for _, c := range []struct{ keys, bytes, want int }{
		{portionKeys, 1, portionKeys * portionGrowth},
		{portionKeys, portionBytes / 100, portionKeys * portionGrowth},
		{portionKeys, portionBytes, portionKeys},
		{portionKeys, portionBytes * 8, portionKeys / 8},
		{10, portionBytes * 100, 1},
		{1, portionBytes / 2, 2},
	} {
		if got := nextPortion(c.keys, c.bytes); got != c.want {
			t.Errorf("after %d keys of %d bytes: %d, want %d", c.keys, c.bytes, got, c.want)
		}
	}
}
