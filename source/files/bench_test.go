package files_test

import (
	"compress/gzip"
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

const benchRows = 500_000

// benchFollow measures what Follow makes of one file of benchRows events.
func benchFollow(b *testing.B, rel files.Relation, name string, line func(i int) string, header string) {
	root := b.TempDir()
	var s strings.Builder
	s.WriteString(header)
	for i := range benchRows {
		s.WriteString(line(i))
	}
	full := filepath.Join(root, name)
	f, err := os.Create(full)
	if err != nil {
		b.Fatal(err)
	}
	if strings.HasSuffix(name, ".gz") {
		z := gzip.NewWriter(f)
		z.Write([]byte(s.String()))
		z.Close()
	} else {
		f.WriteString(s.String())
	}
	f.Close()
	old := time.Now().Add(-time.Hour)
	os.Chtimes(full, old, old)
	rel.Name, rel.Path = "events", name
	b.SetBytes(int64(s.Len()))
	b.ReportAllocs()
	for b.Loop() {
		src, err := files.New(files.Config{Root: root, Relations: []files.Relation{rel}})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		rows := 0
		err = src.Follow(ctx, change.Position{}, source.FollowOptions{Once: true, PieceBytes: 4 << 20}, func(_ context.Context, seg *change.Segment) error {
			for _, tx := range seg.Txs {
				rows += len(tx.Changes)
				if tx.Path == "" {
					cancel()
				}
			}
			return nil
		})
		if rows != benchRows {
			b.Fatalf("%d rows: %v", rows, err)
		}
	}
	b.ReportMetric(float64(benchRows)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

var benchColumns = columns("userId", "bigint", "name", "text", "city", "text", "operation", "text", "sequenceNum", "bigint")

func benchJSON(i int) string {
	return fmt.Sprintf(`{"userId": %d, "name": "Isabel %d", "city": "Monterrey", "operation": "UPDATE", "sequenceNum": %d}`+"\n", i%10000, i, i)
}

func BenchmarkJSONLines(b *testing.B) {
	benchFollow(b, files.Relation{Format: files.JSONLines, Columns: benchColumns}, "e.jsonl", benchJSON, "")
}

func BenchmarkJSONLinesGzip(b *testing.B) {
	benchFollow(b, files.Relation{Format: files.JSONLines, Columns: benchColumns}, "e.jsonl.gz", benchJSON, "")
}

// Numbers, times, escapes, a nested value and one field that is no column.
func BenchmarkJSONLinesTypes(b *testing.B) {
	benchFollow(b, files.Relation{Format: files.JSONLines, Columns: columns("id", "bigint", "amount", "double", "price", "numeric(12,2)",
		"at", "timestamptz", "note", "text", "tags", "jsonb")}, "e.jsonl",
		func(i int) string {
			return fmt.Sprintf(`{"id":%d,"amount":%d.25,"price":%d.5,"at":"2024-03-0%dT10:20:30.%03dZ","note":"a \"quoted\" word","tags":["a", "b"],"more":1}`+"\n",
				i, i, i%1000, i%9+1, i%1000)
		}, "")
}

func BenchmarkCSV(b *testing.B) {
	benchFollow(b, files.Relation{Format: files.CSV, Columns: benchColumns}, "e.csv",
		func(i int) string { return fmt.Sprintf("%d,\"Isabel, %d\",Monterrey,UPDATE,%d\n", i%10000, i, i) },
		"userId,name,city,operation,sequenceNum\n")
}
