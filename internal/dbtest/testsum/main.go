// Command testsum reads `go test -json` and prints one line a package, the output
// of what failed, the reason of what was skipped, and the count of all.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

func main() {
	output := map[string][]string{} // by package and test
	passed, failed, skipped := 0, 0, 0
	var reasons []string
	scan := bufio.NewScanner(os.Stdin)
	scan.Buffer(nil, 16<<20)
	for scan.Scan() {
		var e event
		if json.Unmarshal(scan.Bytes(), &e) != nil {
			fmt.Println(scan.Text()) // a build's complaint
			continue
		}
		id := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			output[id] = append(output[id], e.Output)
			if strings.HasPrefix(strings.TrimSpace(e.Output), "dbtest:") {
				fmt.Print(strings.TrimLeft(e.Output, " "))
			}
			continue
		case "pass":
			if e.Test != "" {
				passed++
			} else {
				fmt.Printf("ok    %-40s %6.1f s\n", e.Package, e.Elapsed)
			}
		case "fail":
			if e.Test != "" {
				failed++
				fmt.Printf("FAIL  %s %s\n%s", e.Package, e.Test, strings.Join(output[id], ""))
			} else {
				fmt.Printf("FAIL  %-40s %6.1f s\n%s", e.Package, e.Elapsed, strings.Join(output[id], ""))
			}
		case "build-fail":
			fmt.Printf("FAIL  build\n%s", strings.Join(output[id], ""))
		case "skip":
			if e.Test != "" {
				skipped++
				reasons = append(reasons, fmt.Sprintf("skip  %s %s\n%s", e.Package, e.Test, strings.Join(output[id], "")))
			}
		}
		delete(output, id)
	}
	sort.Strings(reasons)
	for _, r := range reasons {
		fmt.Print(r)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if err := scan.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}
