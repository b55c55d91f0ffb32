package expr

import (
	"testing"
)

// usual are conditions of flows, as they are met for each row.
var usual = []string{
	"operation = 'DELETE'",
	"operation <> 'DELETE' AND id > 100",
	"operation IN ('APPEND', 'DELETE', 'UPDATE')",
	"id IN (1, 2, 3, 4, 5, 6, 8, 9, 10, 7)",
	"id IS NOT NULL AND nil IS NULL",
	"NOT (n < 0 OR id = 8) AND ok",
	"at >= TIMESTAMP '2024-01-01' AND d < '2025-01-01'",
	"ts BETWEEN '2024-01-01' AND '2024-12-31'",
	"price > 10 AND price <= 99.95",
	"operation <=> 'DELETE' AND name IS DISTINCT FROM operation",
	"operation LIKE 'DEL%' OR name LIKE '%x_y%'",
	"coalesce(nil, operation) = 'DELETE'",
	"CASE WHEN operation = 'DELETE' THEN 1 ELSE 2 END = 1",
	"upper(operation) = 'DELETE' AND length(name) > 2",
	"n + 1 > id * 2",
	"price + 1.5 < 100", "at - INTERVAL 1 day < d + 1",
	"fixed = 'DELETE' AND mood = 'happy' AND f < 1.5",
	"j:a.b[0] = 1",
	"TRY_CAST(digits AS int) IS NULL",
	"substring(operation, 1, 3) || left(name, 2) = 'DELGr'",
	"date_trunc('month', at) = TIMESTAMP '2024-02-01'",
	"to_date('02-29-2024', 'MM-dd-yyyy') = d",
}

func TestUsualConditionsDoNotAllocate(t *testing.T) {
	columns, row := sampleRow()
	for _, text := range usual {
		p, err := CompileCondition(text, columns)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if _, _, err := p.Test(row); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if n := testing.AllocsPerRun(100, func() { p.Test(row) }); n != 0 {
			t.Errorf("%s allocates %v times", text, n)
		}
	}
	buf := make([]byte, 0, 256)
	for _, text := range []string{"id + 1", "upper(name)", "operation || '-' || id", "date(at)", "price * 2"} {
		p, err := Compile(text, columns)
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { p.Eval(row, buf) }); n != 0 {
			t.Errorf("%s allocates %v times", text, n)
		}
	}
}

func BenchmarkTest(b *testing.B) {
	columns, row := sampleRow()
	for _, text := range usual {
		p, err := CompileCondition(text, columns)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Test(row)
			}
		})
	}
}
