//go:build !noduckdb

package duckdb

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// What is kept for rewind points lies in schema _tailrace:
//
//	points           the points, each with its mark
//	point_numbers    the newest number of a pipeline that has no points any more
//	undo             of each target and number the tables of what is kept, and barriers
//	kept_...         a target's rows as they were: notes, as those of a change feed, that stay
//	kept_records_... what was remembered of it
//	undo_files, undo_quarantine, undo_violations
//	                 the bookkeeping's rows as they were, of all targets
//
// Nothing has an index: what a batch touches is joined with what is kept already, which
// costs a scan of the keys. Points, and what is kept, are read by whoever can read the
// file; all else is the owner's.
//
// The newest number is in memory. A batch reads it when it begins, and no point is made
// or goes while a batch is open; what else writes (a copy, the quarantine) holds pointing
// until it has committed.

var _ sink.Rewinds = (*Writer)(nil)

// window is the time since the newest point. There is another one after everything that
// makes what is known of kept tables untrue.
type window struct{ number int64 }

// savedMark is a mark as points hold it.
type savedMark struct {
	Phase      string       `json:"phase"`
	System     string       `json:"system"`
	Timeline   uint32       `json:"timeline"`
	Database   string       `json:"database"`
	Slot       string       `json:"slot"`
	Place      string       `json:"place"`                 // position and resume (checkpoint.PlaceText)
	CommitTime *int64       `json:"commit_time,omitempty"` // µs since the Unix epoch
	Tables     []savedTable `json:"tables,omitempty"`
	Flows      []savedFlow  `json:"flows,omitempty"`
}

type savedTable struct {
	Target [2]string `json:"target"`
	Source [2]string `json:"source"`
	ID     uint32    `json:"id"`
	Phase  string    `json:"phase"`
	Since  string    `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

type savedFlow struct {
	Target [2]string `json:"target"`
	Name   string    `json:"name"`
	Order  uint16    `json:"number"`
	Source [2]string `json:"source"`
	ID     uint32    `json:"id"`
	Phase  string    `json:"phase"`
	Since  string    `json:"since"`
}

func pairOf(n change.Name) [2]string { return [2]string{n.Schema, n.Table} }

func nameOf(pair [2]string) change.Name { return change.Name{Schema: pair[0], Table: pair[1]} }

func saved(m checkpoint.Mark) (string, error) {
	s := savedMark{Phase: string(m.Phase), System: m.Source.System, Timeline: m.Source.Timeline, Database: m.Source.Database,
		Slot: m.Slot, Place: checkpoint.PlaceText(m.Position, m.Resume)}
	if !m.CommitTime.IsZero() {
		us := m.CommitTime.UnixMicro()
		s.CommitTime = &us
	}
	for _, t := range m.Tables {
		s.Tables = append(s.Tables, savedTable{pairOf(t.Target), pairOf(t.Source), t.ID, string(t.Phase), t.Since.String(), t.Reason})
	}
	for _, f := range m.Flows {
		s.Flows = append(s.Flows, savedFlow{pairOf(f.Target), f.Name, f.Order, pairOf(f.Source), f.ID, string(f.Phase), f.Since.String()})
	}
	text, err := json.Marshal(s)
	return string(text), err
}

func restored(text string) (m checkpoint.Mark, err error) {
	var s savedMark
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return m, fault.Corrupted("read the mark of a rewind point: %v", err)
	}
	m = checkpoint.Mark{Phase: checkpoint.Phase(s.Phase), Slot: s.Slot, Source: checkpoint.Identity{System: s.System, Timeline: s.Timeline, Database: s.Database}}
	if m.Position, m.Resume, err = checkpoint.ParsePlace(s.Place); err != nil {
		return m, fault.Corrupted("read the mark of a rewind point: %v", err)
	}
	if s.CommitTime != nil {
		m.CommitTime = time.UnixMicro(*s.CommitTime).UTC()
	}
	for _, t := range s.Tables {
		since, err := parsePosition(t.Since)
		if err != nil {
			return m, err
		}
		m.Tables = append(m.Tables, checkpoint.Table{Target: nameOf(t.Target), Source: nameOf(t.Source), ID: t.ID, Phase: checkpoint.Phase(t.Phase), Since: since, Reason: t.Reason})
	}
	for _, f := range s.Flows {
		since, err := parsePosition(f.Since)
		if err != nil {
			return m, err
		}
		m.Flows = append(m.Flows, checkpoint.Flow{Target: nameOf(f.Target), Name: f.Name, Order: f.Order, Source: nameOf(f.Source), ID: f.ID, Phase: checkpoint.Phase(f.Phase), Since: since})
	}
	return m, nil
}

// readWindow reads the newest number.
func (w *Writer) readWindow(ctx context.Context, c *conn) error {
	n, err := c.number(ctx, "SELECT coalesce(max(number), 0) FROM "+w.bookTable("points")+" WHERE pipeline = $1", w.cfg.Pipeline)
	if err != nil {
		return w.explain("read the rewind points", err)
	}
	w.openWindow(n)
	return w.explain("set the checkpoint threshold", w.setThreshold(ctx, c))
}

// openWindow makes number the one under which is kept; 0: nothing is.
func (w *Writer) openWindow(number int64) {
	if number == 0 {
		w.window.Store(nil)
		return
	}
	w.window.Store(&window{number})
}

// threshold is the size of the write-ahead file that makes a commit checkpoint. While
// there is a point a batch writes about twice as much, and a checkpoint costs what has
// been changed in the tables; so the same number of batches lies between two.
func (w *Writer) threshold() string {
	size := w.cfg.CheckpointThreshold
	if w.window.Load() == nil {
		return size
	}
	digits := strings.TrimRight(size, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil { // the engine has taken it: another spelling
		return size
	}
	return strconv.FormatFloat(2*n, 'f', -1, 64) + size[len(digits):]
}

// setThreshold tells the engine, on any connection.
func (w *Writer) setThreshold(ctx context.Context, c *conn) error {
	_, err := c.exec(ctx, "SET checkpoint_threshold = "+literal(w.threshold()))
	return err
}

// quietly runs a fenced transaction while no batch is open and nothing else notes a
// number, on a connection of its own. fn returns the newest number after it.
func (w *Writer) quietly(ctx context.Context, what string, fn func(c *conn) (newest int64, err error)) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	w.pointing.Lock()
	defer w.pointing.Unlock()
	var newest int64
	err = inTransaction(ctx, c, func() error {
		if err := w.stillOurs(ctx, c); err != nil {
			return err
		}
		newest, err = fn(c)
		return err
	})
	if err == nil {
		w.openWindow(newest)
		err = w.setThreshold(ctx, c)
	}
	return w.explain(what, err)
}

// Point implements sink.Rewinds.
func (w *Writer) Point(ctx context.Context, label string) (p checkpoint.Point, err error) {
	err = w.quietly(ctx, "make a rewind point", func(c *conn) (int64, error) {
		mark, err := w.readMark(ctx, c)
		if err != nil {
			return 0, err
		}
		if mark.Phase == checkpoint.None {
			return 0, fault.Corrupted("pipeline %s has no mark of which a rewind point could be made", w.cfg.Pipeline)
		}
		text, err := saved(mark)
		if err != nil {
			return 0, err
		}
		newest, err := c.number(ctx, "SELECT coalesce(max(n), 0) FROM (SELECT number AS n FROM "+w.bookTable("points")+" WHERE pipeline = $1 UNION ALL SELECT newest FROM "+w.bookTable("point_numbers")+" WHERE pipeline = $1)", w.cfg.Pipeline)
		if err != nil {
			return 0, err
		}
		p = checkpoint.Point{Number: newest + 1, Label: label, Mark: mark}
		if _, err := c.run(ctx, "INSERT INTO "+w.bookTable("points")+" VALUES ($1, $2, $3, now(), false, $4)", w.cfg.Pipeline, p.Number, label, text); err != nil {
			return 0, err
		}
		made, err := c.number(ctx, "SELECT epoch_us(now())") // of this transaction, as above
		p.Made = time.UnixMicro(made).UTC()
		return p.Number, err
	})
	if err != nil {
		return checkpoint.Point{}, err
	}
	return p, nil
}

// Points implements sink.Rewinds.
func (w *Writer) Points(ctx context.Context) (list []checkpoint.Point, err error) {
	err = w.readBook(ctx, "points", func(c *conn) error {
		return inTransaction(ctx, c, func() error {
			if list, err = w.readPoints(ctx, c, w.cfg.Pipeline); err != nil || len(list) == 0 {
				return err
			}
			sizes, err := w.keptBytes(ctx, c)
			for i := range list {
				list[i].Bytes = sizes[list[i].Number]
			}
			return err
		})
	})
	return list, w.explain("read the rewind points", err)
}

func (w *Writer) readPoints(ctx context.Context, c *conn, pipeline string) (list []checkpoint.Point, err error) {
	err = c.each(ctx, func(cells []*string) error {
		p := checkpoint.Point{Label: *cells[1], Gone: *cells[3] == "t"}
		var made int64
		if p.Number, err = strconv.ParseInt(*cells[0], 10, 64); err == nil {
			made, err = strconv.ParseInt(*cells[2], 10, 64)
		}
		if err != nil {
			return fault.Corrupted("read the rewind points: %v", err)
		}
		p.Made = time.UnixMicro(made).UTC()
		p.Mark, err = restored(*cells[4])
		list = append(list, p)
		return err
	}, "SELECT number, label, epoch_us(made), gone, mark FROM "+w.bookTable("points")+" WHERE pipeline = $1 ORDER BY number", pipeline)
	return list, err
}

// A table's size is taken of the texts of some of its rows, and what a row takes beside
// its values.
const (
	sampled  = 1000
	rowBytes = 16
)

// keptBytes estimates, by number, the size of what is kept of targets.
func (w *Writer) keptBytes(ctx context.Context, c *conn) (map[int64]int64, error) {
	var tables []string
	err := c.each(ctx, func(cells []*string) error {
		for _, name := range cells[1:] {
			if *name != "" {
				tables = append(tables, fmt.Sprintf("SELECT %s::BIGINT, CAST(count(*) * (%d + coalesce((SELECT avg(strlen(concat(*COLUMNS(*)))) FROM (FROM %s LIMIT %d)), 0)) AS BIGINT) FROM %[3]s",
					*cells[0], rowBytes, w.bookTable(*name), sampled))
			}
		}
		return nil
	}, "SELECT number, kept, records FROM "+w.bookTable("undo")+" WHERE pipeline = $1 AND barrier = ''", w.cfg.Pipeline)
	sizes := map[int64]int64{}
	if err != nil || len(tables) == 0 {
		return sizes, err
	}
	r, err := c.query(ctx, strings.Join(tables, " UNION ALL "))
	if err != nil {
		return nil, err
	}
	defer r.close()
	for r.next() {
		for row := range r.size {
			sizes[r.cols[0].int64(row)] += r.cols[1].int64(row)
		}
	}
	return sizes, r.err
}

// undoTables lists the tables of what is kept of this pipeline's targets, where a
// condition on table undo holds.
func (w *Writer) undoTables(ctx context.Context, c *conn, condition string) (names []string, err error) {
	err = c.each(ctx, func(cells []*string) error {
		names = append(names, *cells[0])
		return nil
	}, fmt.Sprintf("SELECT name FROM (SELECT unnest([kept, records]) AS name FROM %s WHERE pipeline = $1 AND %s) WHERE name <> ''", w.bookTable("undo"), condition), w.cfg.Pipeline)
	return names, err
}

// forgetKept drops what is kept of targets where a condition on table undo holds.
func (w *Writer) forgetKept(ctx context.Context, c *conn, condition string) error {
	names, err := w.undoTables(ctx, c, condition)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := c.exec(ctx, "DROP TABLE "+w.bookTable(name)); err != nil {
			return err
		}
	}
	_, err = c.run(ctx, "DELETE FROM "+w.bookTable("undo")+" WHERE pipeline = $1 AND "+condition, w.cfg.Pipeline)
	return err
}

// undoBook are the tables of what is kept of the bookkeeping.
var undoBook = [...]string{"undo_files", "undo_quarantine", "undo_violations"}

// DropPoints implements sink.Rewinds.
func (w *Writer) DropPoints(ctx context.Context, below int64) error {
	return w.quietly(ctx, "forget rewind points", func(c *conn) (left int64, err error) {
		points, numbers := w.bookTable("points"), w.bookTable("point_numbers")
		if left, err = c.number(ctx, "SELECT coalesce(max(number), 0) FROM "+points+" WHERE pipeline = $1 AND number >= $2", w.cfg.Pipeline, below); err != nil {
			return 0, err
		}
		if left == 0 { // the numbers go on from the newest
			if _, err := c.run(ctx, "INSERT INTO "+numbers+" SELECT $1, max(number) FROM "+points+" WHERE pipeline = $1 HAVING count(*) > 0", w.cfg.Pipeline); err != nil {
				return 0, err
			}
			if _, err := c.run(ctx, "DELETE FROM "+numbers+" AS n WHERE pipeline = $1 AND newest < (SELECT max(newest) FROM "+numbers+" WHERE pipeline = $1)", w.cfg.Pipeline); err != nil {
				return 0, err
			}
		}
		condition := fmt.Sprintf("number < %d", below)
		if err := w.forgetKept(ctx, c, condition); err != nil {
			return 0, err
		}
		for _, table := range append(undoBook[:], "points") {
			if _, err := c.run(ctx, "DELETE FROM "+w.bookTable(table)+" WHERE pipeline = $1 AND "+condition, w.cfg.Pipeline); err != nil {
				return 0, err
			}
		}
		fault.KillPoint("points dropped")
		return left, nil
	})
}
