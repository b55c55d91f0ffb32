package sim

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed scenarios.txt
var scenarioText string

// Null stands for NULL in scenarios.
const Null = "∅"

// Scenario is some events and what the target holds after them. scenarios.txt
// explains the form.
type Scenario struct {
	Title    string
	Type     int // 1, 2; 3 is bitemporal
	Columns  []string
	Track    []string // nil: all
	Ignore   []string
	AnyOrder bool
	Events   []ScenarioEvent
	Holds    []string // key, values and, of type 2, [start,end) or [start,), in key and start order; bitemporal then [since,till)
}

// ScenarioEvent is one line of a scenario.
type ScenarioEvent struct {
	Op     byte // U, D, T
	Key    string
	Seq    int
	System int      // bitemporal
	Values []string // in the order of Columns
	Cols   []string // only these are written; nil: all
}

// Scenarios reads all of them.
func Scenarios() ([]Scenario, error) {
	var all []Scenario
	var s *Scenario
	holds := false
	for n, line := range strings.Split(scenarioText, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		bad := func() ([]Scenario, error) { return nil, fmt.Errorf("scenarios.txt:%d: %q", n+1, line) }
		switch {
		case line == "" || word == "#":
			continue
		case word == "scenario":
			all = append(all, Scenario{Title: rest})
			s, holds = &all[len(all)-1], false
			continue
		case s == nil:
			return bad()
		case holds:
			s.Holds = append(s.Holds, line)
			continue
		}
		switch word {
		case "type":
			if s.Type = int(rest[0] - '0'); rest == "bitemporal" {
				s.Type = 3
			}
		case "columns":
			s.Columns = strings.Fields(rest)
		case "track":
			s.Track = []string{}
			if rest != "-" {
				s.Track = strings.Fields(rest)
			}
		case "ignore":
			s.Ignore = strings.Fields(rest)
		case "order":
			s.AnyOrder = rest == "any"
		case "holds":
			holds = true
		case "U", "D", "T":
			e := ScenarioEvent{Op: word[0]}
			fields := strings.Fields(rest)
			if word != "T" && len(fields) > 0 {
				e.Key, fields = fields[0], fields[1:]
			}
			if len(fields) == 0 || fields[0][0] != '@' {
				return bad()
			}
			business, system, both := strings.Cut(fields[0][1:], "/")
			var err error
			if e.Seq, err = strconv.Atoi(business); err != nil {
				return bad()
			}
			if e.System, err = strconv.Atoi(system); both != (s.Type == 3) || both && err != nil {
				return bad()
			}
			fields = fields[1:]
			for i := 0; i < len(fields); i++ {
				if fields[i] == "cols" && i+1 < len(fields) {
					e.Cols = strings.Split(fields[i+1], ",")
					break
				}
				name, value, ok := strings.Cut(fields[i], "=")
				if !ok || len(e.Values) == len(s.Columns) || name != s.Columns[len(e.Values)] {
					return bad()
				}
				e.Values = append(e.Values, value)
			}
			if word == "U" && len(e.Values) != len(s.Columns) {
				return bad()
			}
			s.Events = append(s.Events, e)
		default:
			return bad()
		}
	}
	return all, nil
}
