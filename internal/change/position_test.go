package change_test

import (
	"math/big"
	"testing"

	"tailrace/internal/change"
)

func TestNumbersOrderAsPositionsDo(t *testing.T) {
	var before *big.Int
	for _, p := range []change.Position{
		{}, {Offset: 7}, {Offset: 1<<64 - 1}, {File: 1}, {File: 1, Offset: 4}, {File: 1, Offset: 1<<64 - 1}, {File: 2}, {File: 10, Offset: 1},
		{File: 1<<32 - 1, Offset: 1<<64 - 1}, {Epoch: 1}, {Epoch: 1, Offset: 9}, {Epoch: 1, File: 1, Offset: 4}, {Epoch: 2, File: 1}, {Epoch: 99_999_999, File: 1<<32 - 1, Offset: 1<<64 - 1},
	} {
		n, ok := new(big.Int).SetString(p.Number(), 10)
		if !ok || len(p.Number()) > 38 || before != nil && before.Cmp(n) >= 0 {
			t.Errorf("%s is %q, the one before %v", p, p.Number(), before)
		}
		before = n
	}
	if got := (change.Position{Epoch: 1, File: 23, Offset: 4567}).Number(); got != "1000000002300000000000000004567" {
		t.Error(got)
	}
}
