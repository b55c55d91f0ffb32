package sequenced

import (
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
)

// believed explains a bitemporal key, in the order in which its events became known.
func (x *explainer) believed() error {
	l := x.lane
	for i := range x.held {
		l.held = append(l.held, &x.held[i])
	}
	list := l.witnesses(nil, l.held)
	told := make([]Told, len(list))
	for i, w := range list {
		told[i] = x.out.Events[w.position]
		told[i].System = SequenceText(w.known.seq, []change.Type{l.table.Bitemporal.System})
	}
	x.out.Events = told
	b := &l.beliefs[0]
	b.reset(l)
	for len(list) > 0 {
		n, facts, closed := together(list), len(b.facts), len(b.closed)
		if err := b.learn(list[:n]); err != nil {
			return err
		}
		for i := range n - 1 {
			told[i].Led = "the next event became known at the same system time: nobody saw what was between them"
		}
		told[n-1].Led = x.ledTo(b, facts, closed)
		told, list = told[n:], list[n:]
	}
	believed, open := 0, ""
	for i := range b.facts {
		f := &b.facts[i]
		if f.till.seq != nil {
			continue
		}
		if believed++; f.to.seq == nil {
			open = x.sequence(f.from.seq)
		}
	}
	x.out.Rule = fmt.Sprintf("%d of its %d rows are still believed (%s is NULL)", believed, len(b.facts), scd.SystemEndColumn)
	if open != "" {
		x.out.Rule += "; the one that begins at " + open + " is open"
	} else {
		x.out.Rule += "; none of them is open"
	}
	return nil
}

// ledTo says what a system time changed of a belief, which had some facts and closed ones
// before.
func (x *explainer) ledTo(b *belief, facts, closed int) string {
	var ended, begun []string
	for _, i := range b.closed[closed:] {
		ended = append(ended, x.span(&b.facts[i]))
	}
	for i := range b.facts[facts:] {
		begun = append(begun, x.span(&b.facts[facts+i]))
	}
	switch {
	case len(ended)+len(begun) == 0:
		return "changes nothing that is believed; an event that comes late may need it"
	case len(ended) == 0:
		return "believed from then on: " + some(begun)
	case len(begun) == 0:
		return "believed no longer: " + some(ended)
	}
	return "believed no longer: " + some(ended) + "; instead: " + some(begun)
}

func (x *explainer) span(f *fact) string {
	to := "open"
	if f.to.seq != nil {
		to = x.sequence(f.to.seq)
	}
	return fmt.Sprintf("[%s, %s)", x.sequence(f.from.seq), to)
}

// mostTold is how many rows of one event a person reads.
const mostTold = 8

func some(list []string) string {
	if more := len(list) - mostTold; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:mostTold], ", "), more)
	}
	return strings.Join(list, ", ")
}
