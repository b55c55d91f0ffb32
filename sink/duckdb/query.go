//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	bindings "github.com/duckdb/duckdb-go-bindings"
	"github.com/duckdb/duckdb-go/v2/mapping"

	"tailrace/internal/fault"
	"tailrace/sink"
)

var _ sink.Embedded = (*Writer)(nil)

// queries counts those that run. They share the engine's memory with the batches, so a
// batch that finds none left beside one is not the pipeline's fault.
type queries struct {
	sync.Mutex
	running int
	ended   time.Time // the newest one
}

// afterQuery is for how long after a query a lack of memory is put down to it.
const afterQuery = 5 * time.Second

func (q *queries) begin() (end func()) {
	q.Lock()
	defer q.Unlock()
	q.running++
	return func() {
		q.Lock()
		defer q.Unlock()
		q.running--
		q.ended = time.Now()
	}
}

func (q *queries) lately() bool {
	q.Lock()
	defer q.Unlock()
	return q.running > 0 || time.Since(q.ended) < afterQuery
}

// Path is the absolute name of the database's file.
func (w *Writer) Path() string { return w.cfg.Path }

// Query implements sink.Embedded. What a read-only transaction does not stop (SET,
// COPY TO, ATTACH, a COMMIT in front of another statement) is not of the kind SELECT;
// what is and reads other files, the instance's settings stop.
func (w *Writer) Query(ctx context.Context, sql string, fn func(cells []*string) error) error {
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	if c == nil {
		return fault.Refuse("run the pipeline first", "%s is not there", w.cfg.Path)
	}
	defer c.close()
	defer w.queries.begin()()
	if _, err := c.exec(ctx, "BEGIN TRANSACTION READ ONLY"); err != nil {
		return w.explain("begin to read", err)
	}
	err = w.selectRows(ctx, c, sql, fn)
	// A failed statement may have ended the transaction: ROLLBACK can say no more.
	_, _ = c.exec(context.Background(), "ROLLBACK")
	return err
}

func (w *Writer) selectRows(ctx context.Context, c *conn, sql string, fn func(cells []*string) error) error {
	s, err := c.prepareSelect(sql)
	if err != nil {
		return err
	}
	header, texts, plain := s.columns()
	if !plain {
		// Lists, structs and other types that we have no text for: the engine casts
		// them. A projection keeps the order of what it reads.
		s.close()
		inner := strings.TrimRight(sql, "; \t\r\n")
		names := make([]string, len(texts))
		for i := range names {
			names[i] = fmt.Sprintf("c%d", i)
		}
		if s, err = c.prepareSelect(fmt.Sprintf("SELECT %s FROM (\n%s\n) AS asked(%s)", strings.Join(texts, ", "), inner, strings.Join(names, ", "))); err != nil {
			return fault.Badly("the result has columns that are neither numbers, texts, times nor blobs: cast them to VARCHAR")
		}
	}
	r, err := s.query(ctx)
	if err != nil {
		return queryError(ctx, err)
	}
	line := make([]*string, len(header))
	for i := range header {
		line[i] = &header[i]
	}
	if err := fn(line); err != nil {
		r.close()
		return err
	}
	var said error
	if err := r.each(func(cells []*string) error { said = fn(cells); return said }); err != nil && said == nil {
		return queryError(ctx, err)
	}
	return said
}

// prepareSelect prepares a text that must be exactly one statement of the kind SELECT
// without parameters.
func (c *conn) prepareSelect(sql string) (*statement, error) {
	if strings.ContainsRune(sql, 0) {
		return nil, fault.Badly("the statement holds a NUL")
	}
	var list mapping.ExtractedStatements
	defer mapping.DestroyExtracted(&list)
	n := mapping.ExtractStatements(c.handle, sql, &list)
	if n == 0 {
		if text := mapping.ExtractStatementsError(list); text != "" {
			return nil, fault.Badly("%s", text)
		}
		return nil, fault.Badly("there is no statement")
	}
	if n > 1 {
		return nil, fault.Badly("these are %d statements (PIVOT without IN (...) counts as two): exactly one SELECT is taken", n)
	}
	s := &statement{conn: c}
	if mapping.PrepareExtractedStatement(c.handle, list, 0, &s.handle) == mapping.StateError {
		text := mapping.PrepareError(s.handle)
		s.close()
		return nil, fault.Badly("%s", text)
	}
	switch kind := mapping.PreparedStatementType(s.handle); {
	case kind != mapping.StatementTypeSelect:
		s.close()
		return nil, fault.Badly("only a SELECT is taken (also FROM, VALUES, SHOW, DESCRIBE, SUMMARIZE); it reads, and nothing is changed")
	case mapping.NParams(s.handle) > 0:
		s.close()
		return nil, fault.Badly("the statement has parameters; write the values")
	}
	return s, nil
}

// columns describes the result: the names, how to read each as text from one named c0,
// c1 and so on, and whether all can be read as they are.
func (s *statement) columns() (header, texts []string, plain bool) {
	plain = true
	for i := range bindings.PreparedStatementColumnCount(s.handle) {
		header = append(header, bindings.PreparedStatementColumnName(s.handle, i))
		logical := bindings.PreparedStatementColumnLogicalType(s.handle, i)
		text := fmt.Sprintf("c%d", i)
		if typeOfResult(logical).store == unknown {
			text, plain = "CAST("+text+" AS VARCHAR)", false
		}
		mapping.DestroyLogicalType(&logical)
		texts = append(texts, text)
	}
	return header, texts, plain
}

// queryError judges what came of a person's statement. The engine's text goes to that
// person and nowhere else.
func queryError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case outOfMemory(err):
		return &fault.Error{Kind: fault.Operator, Op: "the query needs more memory than destination.duckdb.memory_limit leaves it", Err: err,
			Remedy: "ask for less, or take a snapshot (tailrace snapshot) and query that with another program"}
	}
	var judged *fault.Error
	if errors.As(err, &judged) {
		return err
	}
	return fault.Badly("%s", err.Error())
}
