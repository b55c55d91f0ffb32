package mysql

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// gtids is a set of transactions by their global identifiers.
//
// MySQL: of each server (by UUID, and tag) the ranges of numbers; the set is what was
// executed, holes included. MariaDB: of each domain the server and number of the newest
// transaction, which stands for all before it.
//
// It is kept here and not by the binlog library, whose sets change under the hands of
// whoever remembers one.
type gtids struct {
	mariaDB bool
	parts   []gtidPart // sorted by origin
	last    int        // the part that changed last
	text    []byte     // room
}

type gtidPart struct {
	origin string // uuid or uuid:tag; domain
	server uint32 // MariaDB
	ranges []gtidRange
}

// gtidRange holds from and to, both included.
type gtidRange struct{ from, to uint64 }

// parseGTIDs reads a set as the servers write it.
func parseGTIDs(mariaDB bool, text string) (gtids, error) {
	g := gtids{mariaDB: mariaDB}
	for part := range strings.SplitSeq(strings.Map(withoutSpace, text), ",") {
		if part == "" {
			continue
		}
		if mariaDB {
			fields := strings.Split(part, "-")
			if len(fields) != 3 {
				return g, fmt.Errorf("%q is no GTID like 0-1-100", part)
			}
			server, err1 := strconv.ParseUint(fields[1], 10, 32)
			n, err2 := strconv.ParseUint(fields[2], 10, 64)
			if err1 != nil || err2 != nil {
				return g, fmt.Errorf("%q is no GTID like 0-1-100", part)
			}
			g.add(fields[0], uint32(server), n)
			continue
		}
		origin, rest, _ := strings.Cut(part, ":")
		uuid := origin
		for item := range strings.SplitSeq(rest, ":") {
			if item == "" || item[0] < '0' || item[0] > '9' {
				origin = uuid + ":" + item
				continue
			}
			from, to, isRange := strings.Cut(item, "-")
			if !isRange {
				to = from
			}
			a, err1 := strconv.ParseUint(from, 10, 64)
			b, err2 := strconv.ParseUint(to, 10, 64)
			if err1 != nil || err2 != nil || b < a {
				return g, fmt.Errorf("%q is no part of a GTID set", part)
			}
			g.addRange(origin, gtidRange{a, b})
		}
	}
	return g, nil
}

func withoutSpace(r rune) rune {
	if r == ' ' || r == '\n' || r == '\t' || r == '\r' {
		return -1
	}
	return r
}

func (g *gtids) part(origin string) *gtidPart {
	if g.last < len(g.parts) && g.parts[g.last].origin == origin {
		return &g.parts[g.last]
	}
	at, found := slices.BinarySearchFunc(g.parts, origin, func(p gtidPart, o string) int { return strings.Compare(p.origin, o) })
	if !found {
		g.parts = slices.Insert(g.parts, at, gtidPart{origin: origin})
	}
	g.last = at
	return &g.parts[at]
}

// add adds one transaction.
func (g *gtids) add(origin string, server uint32, n uint64) {
	if !g.mariaDB {
		g.addRange(origin, gtidRange{n, n})
		return
	}
	p := g.part(origin)
	p.server, p.ranges = server, append(p.ranges[:0], gtidRange{n, n})
}

func (g *gtids) addRange(origin string, r gtidRange) {
	p := g.part(origin)
	if n := len(p.ranges); n > 0 && p.ranges[n-1].to+1 == r.from {
		p.ranges[n-1].to = r.to
		return
	}
	// The place of the first range that r touches or that lies behind it; those that r
	// touches are melted with it.
	at := 0
	for at < len(p.ranges) && p.ranges[at].to+1 < r.from {
		at++
	}
	end := at
	for end < len(p.ranges) && p.ranges[end].from <= r.to+1 {
		r = gtidRange{min(r.from, p.ranges[end].from), max(r.to, p.ranges[end].to)}
		end++
	}
	p.ranges = slices.Replace(p.ranges, at, end, r)
}

// String writes the set as the servers do.
func (g *gtids) String() string {
	b := g.text[:0]
	for i := range g.parts {
		p := &g.parts[i]
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(b, p.origin...)
		if g.mariaDB {
			b = append(b, '-')
			b = strconv.AppendUint(b, uint64(p.server), 10)
			b = append(b, '-')
			b = strconv.AppendUint(b, p.ranges[0].to, 10)
			continue
		}
		for _, r := range p.ranges {
			b = append(b, ':')
			b = strconv.AppendUint(b, r.from, 10)
			if r.to != r.from {
				b = append(b, '-')
				b = strconv.AppendUint(b, r.to, 10)
			}
		}
	}
	g.text = b
	return string(b)
}

// find returns the part of an origin, nil if there is none.
func (g *gtids) find(origin string) *gtidPart {
	at, found := slices.BinarySearchFunc(g.parts, origin, func(p gtidPart, o string) int { return strings.Compare(p.origin, o) })
	if !found {
		return nil
	}
	return &g.parts[at]
}

func (g *gtids) drop(origin string) {
	g.parts = slices.DeleteFunc(g.parts, func(p gtidPart) bool { return p.origin == origin })
}

// includes reports whether a number lies in the ranges.
func (p *gtidPart) includes(n uint64) bool {
	at, _ := slices.BinarySearchFunc(p.ranges, n, func(r gtidRange, n uint64) int {
		if r.to < n {
			return -1
		}
		return 1
	})
	return at < len(p.ranges) && p.ranges[at].from <= n
}

// contains reports whether all of o lies in g. Of MariaDB that is judged by numbers alone:
// a domain's numbers grow, whoever gives them.
func (g *gtids) contains(o *gtids) bool {
	for i := range o.parts {
		p := g.find(o.parts[i].origin)
		for _, r := range o.parts[i].ranges {
			switch {
			case p == nil:
				return false
			case g.mariaDB:
				if p.ranges[0].to < r.to {
					return false
				}
			case !slices.ContainsFunc(p.ranges, func(have gtidRange) bool { return have.from <= r.from && r.to <= have.to }):
				return false
			}
		}
	}
	return true
}

// addAll adds o. Of MariaDB the higher number of each domain stays.
func (g *gtids) addAll(o *gtids) {
	for _, p := range o.parts {
		for _, r := range p.ranges {
			switch have := g.find(p.origin); {
			case !g.mariaDB:
				g.addRange(p.origin, r)
			case have == nil || have.ranges[0].to < r.to:
				g.add(p.origin, p.server, r.to)
			}
		}
	}
}

// resume is what a mark remembers beside the position: which file the position is in,
// when that file was begun, and the transactions before it.
type resume struct {
	file    string // name of the log file
	created uint32 // when it was begun, by the source's clock, in seconds since 1970; 0: not known
	gtids   string
	held    string // transactions that are in the destination too, wherever they are in the log; mostly empty
}

func (r resume) String() string {
	text := r.file + " " + strconv.FormatUint(uint64(r.created), 10) + " " + r.gtids
	if r.held != "" {
		text += " " + r.held
	}
	return text
}

// parseResume reads what String writes.
func parseResume(text string) (r resume, err error) {
	fields := strings.Split(text, " ")
	if len(fields) != 3 && len(fields) != 4 {
		return r, fmt.Errorf("%q is not a log file's name, a time and a GTID set", text)
	}
	created, err := strconv.ParseUint(fields[1], 10, 32)
	r = resume{file: fields[0], created: uint32(created), gtids: fields[2]}
	if len(fields) == 4 {
		r.held = fields[3]
	}
	return r, err
}

// has is everything that the destination has.
func (r resume) has(mariaDB bool) (gtids, error) {
	set, err1 := parseGTIDs(mariaDB, r.gtids)
	held, err2 := parseGTIDs(mariaDB, r.held)
	set.addAll(&held)
	return set, errors.Join(err1, err2)
}
