package pipeline

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// Moment is a place in the log's past as a person names it: a rewind point by number or
// label, a position, a GTID set, or a time.
type Moment struct {
	Text     string
	Number   int64           // of a point
	Label    string          // of one
	Position change.Position // what ends at it or before it is meant
	GTIDs    string          // the transactions that it names are meant
	Time     time.Time       // all before the first transaction, in commit order, that was committed later
}

// MomentForms says what ParseMoment reads, and in which order, for help texts.
const MomentForms = `digits alone are a point's number; 16/B374D848 (MariaDB, MySQL: epoch:file:offset, as
status prints it) is a position; 0-1-100 or uuid:1-5 are GTIDs; 2026-11-30T12:00:00Z is a
time; everything else is a point's label`

var (
	gtidForm = regexp.MustCompile(`^(\d+-\d+-\d+|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(:[^,]+)+)(,.+)*$`)
	dateForm = regexp.MustCompile(`^\d{4}-\d\d-\d\d([T ]|$)`)
)

// ParseMoment reads a moment; MomentForms says how.
func ParseMoment(text string) (Moment, error) {
	m := Moment{Text: strings.TrimSpace(text)}
	if m.Text == "" {
		return m, fault.Badly("it is empty: name a point, a position or a time")
	}
	if n, err := strconv.ParseInt(m.Text, 10, 64); err == nil && n > 0 && m.Text[0] != '+' {
		m.Number = n
		return m, nil
	}
	if p, err := change.ParsePosition(m.Text); err == nil && !p.IsZero() {
		m.Position = p
		return m, nil
	}
	if dateForm.MatchString(m.Text) {
		for _, form := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999 Z07:00"} {
			if t, err := time.Parse(form, m.Text); err == nil {
				m.Time = t
				return m, nil
			}
		}
		return m, fault.Badly("%q is not a time with its zone, such as 2026-11-30T12:00:00Z or 2026-11-30T14:00:00.5+02:00", m.Text)
	}
	if gtidForm.MatchString(m.Text) {
		m.GTIDs = m.Text
		return m, nil
	}
	m.Label = m.Text
	return m, nil
}

// CheckLabel refuses a label that would be read as something else.
func CheckLabel(label string) error {
	if label == "" {
		return nil
	}
	if m, err := ParseMoment(label); err != nil || m.Label != label {
		return fault.Badly("label %q would be read as a number, a position, GTIDs or a time; choose a word", label)
	}
	if len(label) > labelMost {
		return fault.Badly("a label is at most %d bytes long", labelMost)
	}
	return nil
}

// labelMost is the longest label in bytes: it stands in a line of a list.
const labelMost = 200

// within says what of the log a moment means, once the points are known.
type within struct {
	position change.Position
	time     time.Time
	gtids    string
	covers   func(set, resume string) (bool, error) // gtids: see source.Namer
}

// place finds what a moment means. A point that is no choice any more is still a place.
func (m *Moment) place(points []checkpoint.Point, src source.Source) (w within, err error) {
	w = within{position: m.Position, time: m.Time, gtids: m.GTIDs}
	switch {
	case m.Number != 0 || m.Label != "":
		p, err := m.named(points, true)
		w.position = p.Mark.Position
		return w, err
	case m.GTIDs != "":
		namer, ok := src.(source.Namer)
		if !ok {
			return w, fault.Badly("%q reads as GTIDs, which this source has not", m.Text)
		}
		w.covers = namer.Covers
		_, err = namer.Covers(m.GTIDs, "")
	}
	return w, err
}

// named finds the point of a number or a label.
func (m *Moment) named(points []checkpoint.Point, gone bool) (checkpoint.Point, error) {
	var found []checkpoint.Point
	for _, p := range points {
		if (gone || !p.Gone) && (m.Number != 0 && p.Number == m.Number || m.Label != "" && p.Label == m.Label) {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var list []string
		for _, p := range found {
			list = append(list, fmt.Sprintf("%d (%s, made %s)", p.Number, p.Mark.Position, p.Made.UTC().Format(time.RFC3339)))
		}
		return checkpoint.Point{}, fault.Badly("several rewind points have the label %q: name one by its number: %s", m.Label, strings.Join(list, ", "))
	case m.Number != 0:
		return checkpoint.Point{}, fault.Refuse("`tailrace checkpoint list` shows those there are", "there is no rewind point %d", m.Number)
	}
	return checkpoint.Point{}, fault.Refuse("`tailrace checkpoint list` shows those there are", "%q is no rewind point's label, nor a position or a time", m.Label)
}

// holds reports whether a mark lies within: nothing of it is later than what is meant.
// at stands for the time of a mark that has seen no transaction yet.
func (w *within) holds(m *checkpoint.Mark, at time.Time) (bool, error) {
	switch {
	case w.gtids != "":
		return w.covers(w.gtids, m.Resume)
	case !w.time.IsZero():
		if !m.CommitTime.IsZero() {
			at = m.CommitTime
		}
		return !at.After(w.time), nil
	}
	return m.Position.Compare(w.position) <= 0, nil
}

// choose finds the newest kept point at or before a moment; now reports that already the
// mark lies there, so that there is nothing to go back to.
func (m *Moment) choose(points []checkpoint.Point, mark *checkpoint.Mark, src source.Source) (p checkpoint.Point, now bool, err error) {
	if m.Number != 0 || m.Label != "" {
		p, err = m.named(points, false)
		return p, false, err
	}
	w, err := m.place(points, src)
	if err != nil {
		return p, false, err
	}
	if now, err = w.holds(mark, time.Time{}); now || err != nil {
		return p, now, err
	}
	first := checkpoint.Point{}
	for _, c := range points {
		if c.Gone {
			continue
		}
		if first.Number == 0 {
			first = c
		}
		holds, err := w.holds(&c.Mark, c.Made)
		if err != nil {
			return p, false, err
		}
		if !holds {
			break
		}
		p = c
	}
	switch {
	case first.Number == 0:
		return p, false, errNoPoints
	case p.Number == 0:
		return p, false, fault.Refuse("choose a later one; `tailrace checkpoint list` shows the rewind points there are",
			"no rewind point lies at or before %s: the window begins with point %d at %s", m.Text, first.Number, describePlace(&first.Mark, first.Made))
	}
	return p, false, nil
}

var errNoPoints = fault.Refuse("points are made from now on if the configuration has `rewind: {keep: 24h}`; until then `tailrace resync --table` copies a table again", "there is no rewind point")

// describePlace prints a place of the log for people.
func describePlace(m *checkpoint.Mark, made time.Time) string {
	if m.CommitTime.IsZero() {
		return fmt.Sprintf("%s, made %s", m.Position, made.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s, newest commit %s", m.Position, m.CommitTime.UTC().Format(time.RFC3339Nano))
}

// Until is where a run stops: between two transactions, exactly, or at the source's
// position at its start, if that comes first.
type Until struct {
	Moment
	within
	// fence is where the commit of a transaction begins of which only its end has shown
	// that it lies behind: it is stopped in front of it, in another session.
	fence change.Position
}

// resolve finds out what is meant.
func (u *Until) resolve(ctx context.Context, s *session) (err error) {
	var points []checkpoint.Point
	if u.Number != 0 || u.Label != "" {
		rewinds, ok := s.dst.(interface {
			Points(context.Context) ([]checkpoint.Point, error)
		})
		if !ok {
			return fault.Badly("this destination has no rewind points")
		}
		if points, err = rewinds.Points(ctx); err != nil {
			return fmt.Errorf("read the rewind points: %w", err)
		}
	}
	if u.within, err = u.place(points, s.src); err != nil {
		return err
	}
	holds, err := u.holds(&s.mark, time.Time{})
	if err == nil && !holds {
		err = fault.Refuse("tailrace rewind --to "+u.Text, "the mark at %s lies behind %s", describePlace(&s.mark, time.Time{}), u.Text)
	}
	return err
}

// beyond reports whether tx lies behind. Of a piece whose end is not known it may say so
// only at the last one.
func (u *Until) beyond(tx *change.Tx) (bool, error) {
	at := tx.Begin
	if len(tx.Changes) == 0 && tx.CommitTime.IsZero() {
		at = tx.End // a quiet point
	}
	switch {
	case !u.fence.IsZero() && !at.Before(u.fence):
		return true, nil
	case u.gtids != "":
		if tx.Resume == "" {
			return false, nil
		}
		in, err := u.covers(u.gtids, tx.Resume)
		return !in, err
	case !u.time.IsZero():
		return tx.CommitTime.After(u.time), nil
	case tx.Last:
		return u.position.Before(tx.End), nil
	}
	return !tx.Begin.Before(u.position), nil
}

// halts reports whether nothing more of the log is taken, from tx on. What of a large
// transaction was taken before its end showed that it lies behind goes with the session.
func (f *follower) halts(tx *change.Tx) (bool, error) {
	u := f.mode.StopAt
	if u == nil || f.halted {
		return f.halted, nil
	}
	beyond, err := u.beyond(tx)
	switch {
	case err != nil || !beyond:
		return false, err
	case !tx.First && tx.Last:
		u.fence = tx.Begin
		return false, errAnew
	case tx.First:
		f.halted, f.until.position = true, f.end
		return true, nil
	}
	return false, nil
}
