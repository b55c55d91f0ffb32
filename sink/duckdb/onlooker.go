//go:build !noduckdb

package duckdb

import (
	"tailrace/sink"
)

// Onlooker implements sink.Embedded: a Writer on the same open instance with a book
// connection of its own. It owns nothing, so whatever writes refuses it.
func (w *Writer) Onlooker() (sink.Writer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &Writer{cfg: w.cfg, log: w.log, turn: make(chan struct{}, 1)}
	if w.db == nil {
		return g, nil
	}
	book, err := w.connect()
	if err != nil {
		return nil, w.explain("look into "+w.cfg.Path, err)
	}
	g.db, g.guest, g.book, g.catalog = w.db, true, book, w.catalog
	return g, nil
}
