//go:build !noduckdb

package duckdb

import "context"

// Peek runs a statement on a connection of its own inside w's instance, if one
// is open, and hands its rows to fn.
func Peek(w *Writer, ctx context.Context, sql string, fn func(cells []*string) error) (open bool, err error) {
	w.mu.Lock()
	if w.db == nil {
		w.mu.Unlock()
		return false, nil
	}
	c, err := w.connect()
	w.known = nil // the statement may make a table
	w.mu.Unlock()
	if err != nil {
		return true, err
	}
	defer c.close()
	return true, c.each(ctx, fn, sql)
}
