package sequenced

import (
	"bytes"
	"cmp"
	"slices"

	"tailrace/internal/change"
	"tailrace/scd"
)

// belief is what is believed of a key at one system time, and how that came to be. It
// learns the key's events in the order of their system times; what it believes after
// each is the history (rule R30) of all events so far, ordered by their business
// sequences, and a fact is a version of that history with the span of system time
// through which it was in it (rule R78). So a target is a function of the set of events,
// whatever the order in which they arrive on either axis.
//
// An event changes the history only around its place: from the version that it falls
// into to the one behind. That part alone is looked at, and with partial updates as far
// as inherited values change. So a key's whole life costs a search and a few comparisons
// an event; only an event that comes late in the order of business moves those behind
// it up, which are four bytes each.
type belief struct {
	lane   *Lane
	pool   []moment
	order  []int32 // of pool, by business sequence
	facts  []fact  // in the order of since
	closed []int32 // of facts: those that stopped being believed, in that order
}

// moment is what all events at one business sequence say together. Those that became
// known later are corrections of the earlier ones (rule R81).
type moment struct {
	bound
	delete  bool
	cleared bool         // a delete came before what was written: nothing is inherited
	own     change.Row   // what its last event wrote
	older   []change.Row // what those before it wrote that still counts, newest first (partial updates)
	row     change.Row   // with what is inherited; nil: no row
	begins  bool         // a version begins here: the row differs from that of the moment before
	fact    int32        // of the version that begins here, as it is believed; -1: none
}

// bound is a point of one of the axes. A nil seq stands for "unbounded".
type bound struct{ seq, text []byte }

// fact is a row of the target.
type fact struct {
	from, to    bound // business
	since, till bound // system
	row         change.Row
}

// witness is an event of a key, remembered or new.
type witness struct {
	at       bound // business
	known    bound // system
	place    []byte
	delete   bool
	row      change.Row
	position int32 // in a list of the caller's
	new      bool
}

func (b *belief) reset(l *Lane) {
	clear(b.pool)
	clear(b.facts)
	b.lane, b.pool, b.order, b.facts, b.closed = l, b.pool[:0], b.order[:0], b.facts[:0], b.closed[:0]
}

// copyOf makes b believe what o believes.
func (b *belief) copyOf(o *belief) {
	b.reset(o.lane)
	b.pool, b.order = append(b.pool, o.pool...), append(b.order, o.order...)
	b.facts, b.closed = append(b.facts, o.facts...), append(b.closed, o.closed...)
}

func (b *belief) at(i int) *moment { return &b.pool[b.order[i]] }

// all learns witnesses that are sorted by orderWitnesses.
func (b *belief) all(list []witness) error {
	for len(list) > 0 {
		n := together(list)
		if err := b.learn(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// together returns how many witnesses became known at the first one's system time.
// Nobody saw what would have been believed between them.
func together(list []witness) int {
	n := 1
	for n < len(list) && bytes.Equal(list[n].known.seq, list[0].known.seq) {
		n++
	}
	return n
}

// learn takes what became known at one system time.
func (b *belief) learn(list []witness) error {
	first, last := len(b.order), -1 // moments whose own events changed
	for i := range list {
		at, inserted := b.hear(&list[i])
		if inserted && at <= last {
			last++
		}
		first, last = min(first, at), max(last, at)
	}
	last, err := b.settle(first, last)
	if err != nil {
		return err
	}
	b.judge(first, last, list[0].known)
	return nil
}

// hear adds a witness to the moment of its business sequence.
func (b *belief) hear(w *witness) (at int, inserted bool) {
	if at = len(b.order); at > 0 && bytes.Compare(b.at(at-1).seq, w.at.seq) >= 0 {
		var found bool
		at, found = slices.BinarySearchFunc(b.order, w.at.seq, func(i int32, seq []byte) int { return bytes.Compare(b.pool[i].seq, seq) })
		inserted = !found
	} else {
		inserted = true
	}
	if inserted {
		b.order = slices.Insert(b.order, at, int32(len(b.pool)))
		b.pool = append(b.pool, moment{bound: w.at, fact: -1})
	}
	m := b.at(at)
	switch {
	case w.delete:
		m.older = nil
	case m.delete:
		m.cleared = true
	case b.lane.partial && m.own != nil:
		m.older = append([]change.Row{m.own}, m.older...)
	}
	m.delete, m.own = w.delete, w.row
	return at, inserted
}

// settle decides anew which rows there are from moment first on, and where versions
// begin. It goes beyond last as long as rows change, and returns how far it went.
func (b *belief) settle(first, last int) (int, error) {
	for i := first; i < len(b.order); i++ {
		m := b.at(i)
		var before change.Row
		if i > 0 {
			before = b.at(i - 1).row
		}
		row, err := b.fill(m, before)
		if err != nil {
			return 0, err
		}
		changed := !bytes.Equal(row, m.row)
		m.row = row
		m.begins = row != nil && !bytes.Equal(row, before)
		if i > last && !changed {
			return i, nil
		}
	}
	return len(b.order) - 1, nil
}

// fill composes the row of a moment; what it did not write comes from the row before
// (rule R50).
func (b *belief) fill(m *moment, before change.Row) (change.Row, error) {
	switch {
	case m.delete:
		return nil, nil
	case !b.lane.partial:
		return m.own, nil
	}
	c := b.lane.merger(len(b.lane.target.Columns))
	_, _, err := c.add(m.own)
	for i := 0; i < len(m.older) && err == nil; i++ {
		_, _, err = c.add(m.older[i])
	}
	if before != nil && !m.cleared && err == nil {
		_, _, err = c.add(before)
	}
	if err != nil {
		return nil, err
	}
	return c.row(&b.lane.slab), nil
}

// judge compares the versions around the moments first to last with what was believed,
// which ends where it differs.
func (b *belief) judge(first, last int, known bound) {
	if first > 0 && b.at(first-1).row != nil {
		for first--; !b.at(first).begins; first-- {
		}
	}
	end := b.runEnd(last + 1)
	for i := first; i < end; i++ {
		m := b.at(i)
		if !m.begins {
			b.close(m, known)
			continue
		}
		var to bound
		if n := b.runEnd(i + 1); n < len(b.order) {
			to = b.at(n).bound
		}
		if m.fact >= 0 {
			if f := &b.facts[m.fact]; bytes.Equal(f.to.seq, to.seq) && bytes.Equal(f.row, m.row) {
				continue
			}
			b.close(m, known)
		}
		m.fact = int32(len(b.facts))
		b.facts = append(b.facts, fact{from: m.bound, to: to, since: known, row: m.row})
	}
}

// runEnd returns the first moment from i on that continues no version.
func (b *belief) runEnd(i int) int {
	for i < len(b.order) && b.at(i).row != nil && !b.at(i).begins {
		i++
	}
	return i
}

func (b *belief) close(m *moment, known bound) {
	if m.fact >= 0 {
		b.facts[m.fact].till = known
		b.closed = append(b.closed, m.fact)
		m.fact = -1
	}
}

func orderWitnesses(a, b witness) int {
	return cmp.Or(bytes.Compare(a.known.seq, b.known.seq), bytes.Compare(a.at.seq, b.at.seq), bytes.Compare(a.place, b.place))
}

// witnesses returns a key's events in the order in which they became known.
func (l *Lane) witnesses(events []*event, held []*record) []witness {
	out := l.known[:0]
	for i, h := range held {
		out = append(out, witness{at: bound{h.Seq, h.start}, known: bound{h.system, h.systemStart}, place: h.At, delete: h.delete, row: h.row, position: int32(i)})
	}
	for i, e := range events {
		out = append(out, witness{at: bound{e.Place.Seq, e.Start.Data}, known: bound{e.System, e.SystemStart.Data}, place: e.Place.At, delete: e.Delete, row: e.Row, position: int32(i), new: true})
	}
	slices.SortFunc(out, orderWitnesses)
	l.known = out
	return out
}

// foldBitemporal decides one key of a bitemporal target. What was known before the
// earliest of the new events became known stays; from there on the key is lived through
// as it was and as it is, and what differs is written.
func (l *Lane) foldBitemporal(d *node, events []*event, held []*record, w *Work, r *scd.Round) error {
	if len(events) == 0 {
		l.retell(d, held, w)
		return nil
	}
	all := l.witnesses(events, held)
	from := slices.IndexFunc(all, func(x witness) bool { return x.new })
	for from > 0 && bytes.Equal(all[from-1].known.seq, all[from].known.seq) {
		from--
	}
	l.count(all[from:], events, held)
	is, was := &l.beliefs[0], &l.beliefs[1]
	is.reset(l)
	if err := is.all(all[:from]); err != nil {
		return err
	}
	shared := len(is.facts)
	is.closed = is.closed[:0]
	was.reset(l)
	if slices.ContainsFunc(all[from:], func(x witness) bool { return !x.new }) {
		was.copyOf(is)
		old := make([]witness, 0, len(all)-from)
		for _, x := range all[from:] {
			if !x.new {
				old = append(old, x)
			}
		}
		if err := was.all(old); err != nil {
			return err
		}
	}
	if err := is.all(all[from:]); err != nil {
		return err
	}
	if err := l.tellFacts(d.key, shared, was, is, r); err != nil {
		return err
	}
	for _, e := range events {
		s := e.stored()
		if bytes.Equal(e.Place.Seq, l.newest.Seq) && bytes.Equal(e.Place.At, l.newest.At) {
			s.last = l.last
		}
		l.put(w, d.key, e.Place, &s, false, e.Time)
	}
	if len(held) > 0 && len(l.follows) > 0 {
		if newest := held[len(held)-1]; newest.place().Compare(l.newest) == 0 {
			l.tell(d, newest, w)
		}
	}
	return nil
}

// count counts what is late and what is tied among witnesses that are not all new.
func (l *Lane) count(list []witness, events []*event, held []*record) {
	var newest []byte // of what was known
	for _, h := range held {
		if bytes.Compare(h.system, newest) > 0 {
			newest = h.system
		}
	}
	for i := range list {
		x := &list[i]
		if !x.new {
			continue
		}
		same := func(y *witness) bool { return bytes.Equal(x.known.seq, y.known.seq) && bytes.Equal(x.at.seq, y.at.seq) }
		if i > 0 && same(&list[i-1]) || i+1 < len(list) && !list[i+1].new && same(&list[i+1]) {
			l.counts.Ties++
		}
		if events[x.position].late || bytes.Compare(x.known.seq, newest) < 0 {
			l.counts.Late++
		}
	}
}

// tellFacts writes what differs between two beliefs that share their first facts.
func (l *Lane) tellFacts(key []byte, shared int, was, is *belief, r *scd.Round) error {
	var err error
	put := func(rows *[]change.Row, f *fact) {
		row, e := l.factRow(f)
		*rows, err = append(*rows, row), cmp.Or(err, e)
	}
	for _, i := range is.closed {
		if int(i) < shared && (int(i) >= len(was.facts) || !was.facts[i].till.equal(is.facts[i].till)) {
			put(&r.Upserts, &is.facts[i])
		}
	}
	for _, i := range was.closed {
		if int(i) < shared && is.facts[i].till.seq == nil {
			put(&r.Upserts, &is.facts[i])
		}
	}
	later := func(b *belief) []fact {
		list := b.facts[min(shared, len(b.facts)):]
		slices.SortFunc(list, compareFacts)
		return list
	}
	for o, n := later(was), later(is); len(o) > 0 || len(n) > 0; {
		order := 0
		switch {
		case len(o) == 0:
			order = 1
		case len(n) == 0:
			order = -1
		default:
			order = compareFacts(o[0], n[0])
		}
		respelled := order == 0 && !(o[0].from.equal(n[0].from) && o[0].since.equal(n[0].since))
		if order < 0 || respelled {
			r.Deletes = append(r.Deletes, l.factKey(key, &o[0]))
		}
		switch {
		case order > 0 || respelled:
			put(&r.Inserts, &n[0])
		case order == 0 && !(o[0].to.equal(n[0].to) && o[0].till.equal(n[0].till) && bytes.Equal(o[0].row, n[0].row)):
			put(&r.Upserts, &n[0])
		}
		if order <= 0 {
			o = o[1:]
		}
		if order >= 0 {
			n = n[1:]
		}
	}
	return err
}

// overlaps counts the facts that overlap, when they come to be believed, with another that
// is. It sees to it apart from what made them: a history in which two rows hold at once is
// wrong whatever the events were.
func overlaps(facts []fact, closed []int32) (n int) {
	var now []int32 // what is believed, by business time
	find := func(f *fact) (int, bool) {
		return slices.BinarySearchFunc(now, f.from.seq, func(i int32, seq []byte) int { return bytes.Compare(facts[i].from.seq, seq) })
	}
	reaches := func(a, b *fact) bool { return a.to.seq == nil || bytes.Compare(a.to.seq, b.from.seq) > 0 }
	for i := range facts {
		f := &facts[i]
		for len(closed) > 0 && bytes.Compare(facts[closed[0]].till.seq, f.since.seq) <= 0 {
			if at, found := find(&facts[closed[0]]); found && now[at] == closed[0] {
				now = slices.Delete(now, at, at+1)
			}
			closed = closed[1:]
		}
		at, twice := find(f)
		if twice || at > 0 && reaches(&facts[now[at-1]], f) || at < len(now) && reaches(f, &facts[now[at]]) {
			n++
			continue
		}
		now = slices.Insert(now, at, int32(i))
	}
	return n
}

// compareFacts orders facts by what tells them apart.
func compareFacts(a, b fact) int {
	return cmp.Or(bytes.Compare(a.from.seq, b.from.seq), bytes.Compare(a.since.seq, b.since.seq))
}

func (x bound) equal(y bound) bool { return bytes.Equal(x.seq, y.seq) && bytes.Equal(x.text, y.text) }

func (x bound) value() change.Value {
	if x.seq == nil {
		return change.Value{State: change.Null}
	}
	return change.Value{State: change.AsText, Data: x.text}
}

// factKey is the key of a fact's row in the target's table.
func (l *Lane) factKey(key []byte, f *fact) scd.Key {
	out := change.Row(l.slab.Take(len(key) + 10 + len(f.from.text) + len(f.since.text)))
	return append(out, key...).Append(f.from.value()).Append(f.since.value())
}

// factRow is a fact's row in the target's table.
func (l *Lane) factRow(f *fact) (change.Row, error) {
	out := change.Row(l.slab.Take(len(f.row) + 20 + len(f.from.text) + len(f.to.text) + len(f.since.text) + len(f.till.text)))
	rest := f.row
	for i := range l.table.Columns {
		var v change.Value
		var err error
		switch l.table.Columns[i].Name {
		case scd.StartColumn:
			v = f.from.value()
		case scd.EndColumn:
			v = f.to.value()
		case scd.SystemStartColumn:
			v = f.since.value()
		case scd.SystemEndColumn:
			v = f.till.value()
		default:
			if v, rest, err = rest.Next(); err != nil {
				return nil, err
			}
		}
		out = out.Append(v)
	}
	return out, nil
}
