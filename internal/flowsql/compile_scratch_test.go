package flowsql

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestScratch(t *testing.T) {
	files, _ := filepath.Glob("testdata/documents/*.sql")
	for _, p := range files {
		b, _ := os.ReadFile(p)
		f, err := Parse(p, string(b))
		if err != nil {
			t.Fatal(err)
		}
		plan, err := Compile([]*File{f}, Options{Source: "postgres"})
		if err != nil {
			fmt.Println(p, err)
			continue
		}
		for _, s := range plan.Flows {
			fmt.Printf("%s\n  %+v\n", p, s)
			if s.Snapshot != nil {
				fmt.Printf("  %+v\n", *s.Snapshot)
			}
		}
		fmt.Println(plan.Relations, plan.Notes)
	}
}
