package postgres

import "testing"

func TestAMemoryTooLargeToCountIsEstimated(t *testing.T) {
	f := start(t)
	f.exec("CREATE TABLE r AS SELECT decode(md5(i::text), 'hex') AS key, i % 4 = 0 AS tombstone FROM generate_series(1, 100000) AS i")
	s, err := f.w.sideSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.w.count(t.Context(), s, "public.r", countedPages); err != nil || n.Records != 100_000 || n.Tombstones != 25_000 || n.Estimated {
		t.Errorf("counted: %+v, %v", n, err)
	}
	// About half of the pages: 200 of them or more, so that chance stays far from a third.
	n, err := f.w.count(t.Context(), s, "public.r", 250)
	if err != nil || !n.Estimated || n.Records < 66_000 || n.Records > 134_000 || n.Tombstones < 16_000 || n.Tombstones > 34_000 {
		t.Errorf("estimated: %+v, %v", n, err)
	}
}
