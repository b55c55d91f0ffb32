package mysql

import (
	"bytes"
	"context"
	sqldriver "database/sql/driver"
	"strconv"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// chainsAtOnce are how many keys' newest versions are held while their steps are judged.
const chainsAtOnce = 1000

// newest is the newest stored version of a key.
type newest struct {
	start  int64 // µs since 1970
	end    int64
	open   bool
	values []change.Value // as keep gives them
}

// chain is the steps of one key in a round.
type chain []scd.Step

// chainsOf divides a round's steps by their keys.
func chainsOf(sh *shape, steps []scd.Step) ([]chain, error) {
	var out []chain
	for i := range steps {
		if steps[i].N == 1 {
			out = append(out, chain(steps[i:i+1:i+1]))
			continue
		}
		last := len(out) - 1
		if last < 0 || steps[i].N != len(out[last])+1 || !bytes.Equal(steps[i].Key, out[last][0].Key) {
			return nil, fault.Corrupted("%s: the steps of a key are out of order", sh.label())
		}
		out[last] = chain(steps[i-len(out[last]) : i+1 : i+1])
	}
	return out, nil
}

// verdict is what the steps of a key do to its history.
type verdict struct {
	ends  bool // the stored open version ends at end
	end   int64
	void  bool // step 1 does nothing: a version that it would begin is there already
	begun []begin
}

// begin is a version that a step begins.
type begin struct {
	step    int // index in the chain
	at      int64
	until   int64
	bounded bool // it ends at until
}

// judgeChain applies the rules of scd.Step: stored is nil where the key has no version, same
// says that the open version equals step 1 in its tracked columns.
func judgeChain(stored *newest, c chain, same bool) verdict {
	open := stored != nil && stored.open
	v := verdict{void: !open}
	if c[0].Row != nil {
		v.void = open && same
	}
	instant := func(i int) int64 {
		n := int64(i + 1)
		lo := c[i].Lo
		if v.void {
			lo, n = c[i].LoVoid, n-1
		}
		if stored == nil {
			return lo
		}
		b := stored.start
		if !stored.open {
			b = stored.end
		}
		return max(lo, b+n)
	}
	first := 0
	if v.void {
		first = 1
	}
	if open && first < len(c) {
		v.ends, v.end = true, instant(first)
	}
	for i := first; i < len(c); i++ {
		if c[i].Row == nil {
			continue
		}
		b := begin{step: i, at: instant(i)}
		if i+1 < len(c) {
			b.until, b.bounded = instant(i+1), true
		}
		v.begun = append(v.begun, b)
	}
	return v
}

// round2 carries out a type 2 round. The newest versions of its keys are read, judged
// and written: what ends, and what begins.
//
// In a source transaction that comes in pieces what an earlier piece did to the same keys
// is taken back first: absent columns are filled while it still stands, then the keys are
// put back to what they were before the transaction, and the steps are judged as if they
// were its only ones.
func (a *applier) round2(ctx context.Context, sh *shape, r *scd.Round, pieces bool) error {
	chains, err := chainsOf(sh, r.Steps)
	if err != nil {
		return err
	}
	e := &encoder{sh: sh}
	filled, err := a.fillSteps(ctx, e, r.Steps)
	if err != nil {
		return err
	}
	if pieces {
		if err := a.recompose(ctx, sh, chains, r.Truncate); err != nil {
			return err
		}
	}
	if r.Truncate {
		// The steps' keys are looked at first: what the truncate ends is open to them, and
		// they say when it ends.
		stored, err := a.newest(ctx, sh, chains)
		if err != nil {
			return err
		}
		if _, err := a.on(ctx, sh, sh.truncateVersionsSQL(r.TruncateAt), "truncate"); err != nil {
			return err
		}
		return a.steps(ctx, e, chains, 0, stored, filled, true)
	}
	first := 0 // number of the part's first step
	for len(chains) > 0 {
		part := chains[:min(len(chains), chainsAtOnce)]
		chains = chains[len(part):]
		stored, err := a.newest(ctx, sh, part)
		if err != nil {
			return err
		}
		if err := a.steps(ctx, e, part, first, stored, filled, false); err != nil {
			return err
		}
		for _, c := range part {
			first += len(c)
		}
	}
	return nil
}

// fillSteps reads what fills the absent columns of steps, by number: the open versions of
// their origins before the round.
func (a *applier) fillSteps(ctx context.Context, e *encoder, steps []scd.Step) (map[int][]change.Value, error) {
	sh := e.sh
	var gapped []int
	for i := range steps {
		if steps[i].Row != nil && steps[i].Row.HasAbsent(len(sh.columns)) {
			gapped = append(gapped, i)
		}
	}
	fills := make(map[int][]change.Value, len(gapped))
	var arena scd.Arena
	err := a.fetch(ctx, sh, len(gapped), func(i int) (scd.Key, error) {
		s := &steps[gapped[i]]
		if s.Origin != nil {
			return s.Origin, nil
		}
		return s.Key, nil
	}, func(i int, row []sqldriver.Value) error {
		if row[1] == nil { // it is open
			fills[gapped[i]] = sh.keep(&arena, row[2:])
		}
		return nil
	})
	if err == nil && len(fills) != len(gapped) {
		err = fault.Corrupted("fill versions of %s: %d rows that the source has changed are not open", sh.label(), len(gapped)-len(fills))
	}
	return fills, err
}

// newest reads the newest version of each chain's key; nil where there is none.
func (a *applier) newest(ctx context.Context, sh *shape, chains []chain) ([]*newest, error) {
	out := make([]*newest, len(chains))
	var arena scd.Arena
	err := a.fetch(ctx, sh, len(chains), func(i int) (scd.Key, error) { return chains[i][0].Key, nil }, func(i int, row []sqldriver.Value) error {
		n := &newest{open: row[1] == nil}
		start, err := instantOf(cell(row[0]))
		if err != nil {
			return err
		}
		end, err := instantOf(cell(row[1]))
		if err != nil {
			return err
		}
		n.start, n.end, n.values = start.UnixMicro(), end.UnixMicro(), sh.keep(&arena, row[2:])
		out[i] = n
		return nil
	})
	return out, err
}

// steps judges chains, the first step of which has the number first, and writes what
// comes of it. With truncated the open versions were ended: each is given the end that
// its chain says, or none.
func (a *applier) steps(ctx context.Context, e *encoder, chains []chain, first int, stored []*newest, filled map[int][]change.Value, truncated bool) error {
	sh := e.sh
	var started []version
	endHead, endTail := sh.endSQL(false)
	ends := a.list(endHead, endTail, sh, "end versions of")
	var frees *list
	if sh.list(untracked, named) != "" {
		head, tail := sh.endSQL(true)
		frees = a.list(head, tail, sh, "end versions of")
	}
	for i, c := range chains {
		same, sameFree := false, false
		if s := stored[i]; s != nil && s.open && c[0].Row != nil {
			if err := e.complete(&c[0], filled[first]); err != nil {
				return err
			}
			var err error
			if same, sameFree, err = e.equals(s.values); err != nil {
				return err
			}
		}
		v := judgeChain(stored[i], c, same)
		free := v.void && c[0].Row != nil && !sameFree
		if s := stored[i]; s != nil && s.open && (v.ends || free || truncated) {
			l := ends
			if free && frees != nil {
				l = frees
			}
			if err := a.endVersion(ctx, l, e, &c[0], s, v, l == frees); err != nil {
				return err
			}
		}
		for _, b := range v.begun {
			started = append(started, version{step: &c[b.step], number: first + b.step, begin: b})
		}
		first += len(c)
	}
	if err := ends.flush(ctx); err != nil {
		return err
	}
	if frees != nil {
		if err := frees.flush(ctx); err != nil {
			return err
		}
	}
	return a.beginVersions(ctx, e, len(started), func(i int) (values []change.Value, start, end change.Value, err error) {
		s := &started[i]
		if err = e.complete(s.step, filled[s.number]); err != nil {
			return nil, start, end, err
		}
		if start, err = sh.instant(s.begin.at); err != nil {
			return nil, start, end, err
		}
		end.State = change.Null
		if s.begin.bounded {
			end, err = sh.instant(s.begin.until)
		}
		return e.values, start, end, err
	})
}

// version is one that begins, and the step that it comes from.
type version struct {
	step   *scd.Step
	number int
	begin  begin
}

// complete puts a step's complete row into e.values.
func (e *encoder) complete(s *scd.Step, fill []change.Value) error {
	if err := e.parse(s.Row, fill != nil); err != nil {
		return err
	}
	if fill == nil {
		return nil
	}
	return e.fill(fill)
}

// equals compares e.values with stored ones, as payloads: the tracked columns, and the
// others.
func (e *encoder) equals(with []change.Value) (tracked, free bool, err error) {
	tracked, free = true, true
	for i := range e.sh.columns {
		c := &e.sh.columns[i]
		if c.key || c.generated {
			continue
		}
		v, w := e.values[i], with[i]
		equal := (v.State == change.Null) == (w.State == change.Null)
		if equal && v.State != change.Null {
			var data []byte
			if data, e.scratch, err = c.payload(e.scratch[:0], v); err != nil {
				return false, false, err
			}
			equal = bytes.Equal(data, w.Data)
		}
		if c.tracked {
			tracked = tracked && equal
		} else {
			free = free && equal
		}
	}
	return tracked, free, nil
}

// endVersion appends a stored version's key, start and end, with free also the values of
// columns that are not tracked, which are in e.values.
func (a *applier) endVersion(ctx context.Context, l *list, e *encoder, s *scd.Step, stored *newest, v verdict, free bool) error {
	l.open()
	var err error
	if l.buf, err = e.keyConstants(l.buf, s.Key); err != nil {
		return err
	}
	start, err := e.sh.instant(stored.start)
	if err != nil {
		return err
	}
	if l.buf, err = e.constant(append(l.buf, ','), &e.sh.start, start); err != nil {
		return err
	}
	end := change.Value{State: change.Null}
	if v.ends {
		if end, err = e.sh.instant(v.end); err != nil {
			return err
		}
	}
	if l.buf, err = e.constant(append(l.buf, ','), &e.sh.end, end); err != nil {
		return err
	}
	if free {
		if l.buf, err = e.constants(append(l.buf, ','), untracked, e.values); err != nil {
			return err
		}
	}
	return l.end(ctx)
}

// instant is an instant as a value of the start's column.
func (sh *shape) instant(micros int64) (change.Value, error) {
	if micros < firstInstant || micros > lastInstant {
		return change.Value{}, sh.start.refuse(errYears)
	}
	return change.Value{State: stored, Data: appendInstant(nil, micros)}, nil
}

// beginVersions inserts versions.
func (a *applier) beginVersions(ctx context.Context, e *encoder, n int, at func(i int) (values []change.Value, start, end change.Value, err error)) error {
	const doing = "begin versions of"
	sh := e.sh
	if a.s.server.local && n >= loadRows {
		i := 0
		sent, met, err := load(ctx, a.s, sh, doing, func(reader string) string { return sh.loadSQL(reader, false) }, func(dst []byte) ([]byte, bool, error) {
			if i == n {
				return dst, false, nil
			}
			values, start, end, err := at(i)
			i++
			if err == nil {
				dst, err = e.line(dst, values, start, end)
			}
			return dst, err == nil, err
		})
		if err == nil && sent != met {
			err = fault.Corrupted("%s %s: of %d rows %d have arrived", doing, sh.label(), sent, met)
		}
		return err
	}
	head, tail := sh.insertSQL(false)
	l := a.list(head, tail, sh, doing)
	for i := range n {
		values, start, end, err := at(i)
		if err != nil {
			return err
		}
		l.open()
		if l.buf, err = e.row(l.buf, values, start, end); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

// recompose puts the round's keys back to what they were before the source transaction,
// and records the state of those that it touches for the first time. A truncate touches
// all.
func (a *applier) recompose(ctx context.Context, sh *shape, chains []chain, whole bool) error {
	const doing = "compose the pieces of a transaction in"
	keys := func(i int) (scd.Key, error) { return chains[i][0].Key, nil }
	if sh.record == "" {
		sh.record = "_tailrace.tailrace_before_" + strconv.Itoa(len(a.recorded))
		if _, err := a.on(ctx, sh, sh.createRecordSQL(), doing); err != nil {
			return err
		}
		a.recorded = append(a.recorded, sh)
	} else {
		forget, restore := sh.undoSQL(whole)
		for _, sql := range [][2]string{forget, restore} {
			if whole {
				if _, err := a.on(ctx, sh, sql[0]+sql[1], doing); err != nil {
					return err
				}
			} else if err := a.byKeys(ctx, sh, doing, sql[0], sql[1], len(chains), keys, nil); err != nil {
				return err
			}
		}
	}
	head, tail := sh.rememberSQL()
	if err := a.byKeys(ctx, sh, doing, head, tail, len(chains), keys, nil); err != nil {
		return err
	}
	if whole {
		_, err := a.on(ctx, sh, sh.rememberOpenSQL(), doing)
		return err
	}
	return nil
}
