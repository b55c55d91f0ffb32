package mysql

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/sink"
	"tailrace/sink/sinktest"
)

func TestContract(t *testing.T) {
	for _, server := range dbtest.MySQLs(t) {
		t.Run(server.Binaries.Full, func(t *testing.T) {
			sinktest.Run(t, func(t testing.TB) sinktest.Harness { return newHarness(t, server) })
		})
	}
}

func TestContractOfPoints(t *testing.T) {
	for _, server := range dbtest.MySQLs(t) {
		t.Run(server.Binaries.Full, func(t *testing.T) {
			sinktest.RunPoints(t, func(t testing.TB) sinktest.PointHarness { return newHarness(t, server) })
		})
	}
}

// harness is a database of its own on the test server. The bookkeeping belongs to the
// server: it is dropped before each test.
type harness struct {
	server *dbtest.MyServer
	schema string
}

func newHarness(t testing.TB, server *dbtest.MyServer) *harness {
	server.Exec(t, "", "DROP DATABASE IF EXISTS _tailrace")
	return &harness{server, server.Database(t)}
}

func (h *harness) open(t testing.TB, pipeline string) *Writer {
	t.Helper()
	w, err := New(Config{DSN: h.server.URL(h.schema), Pipeline: pipeline})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return w
}

// Open closes what it opens at the test's end: a lock belongs to the server, and would
// keep the next test's owner waiting.
func (h *harness) Open(t testing.TB) sink.Writer { return h.OpenAs(t, "shop") }

func (h *harness) OpenAs(t testing.TB, pipeline string) sink.Writer {
	w := h.open(t, pipeline)
	t.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w
}

func (h *harness) Schema() string            { return h.schema }
func (h *harness) Micros(expr string) string { return micros(expr) }

func (h *harness) Has() sinktest.Features {
	return sinktest.Features{Depose: true, Keys: true, Secondary: true, LastInstant: lastInstant, Refuses: refuses}
}

// refuses are values that have no place in the columns of their types.
func refuses(t change.Type, text string) bool {
	switch t.Kind {
	case change.Float32, change.Float64:
		return text == "NaN" || strings.HasSuffix(text, "Infinity")
	case change.Numeric:
		return t.Precision > 0 && text == "NaN"
	case change.Date, change.Timestamp, change.TimestampTZ:
		return strings.HasSuffix(text, "infinity") || strings.HasSuffix(text, "BC") || strings.Index(text, "-") > 4
	}
	return false
}

var (
	instants = regexp.MustCompile(`TIMESTAMP WITH TIME ZONE '([^']*)\+00'`)
	uniques  = regexp.MustCompile(`^(CREATE UNIQUE INDEX .*) \((\w+)\)$`)
	fields   = regexp.MustCompile(`\(to_json\(([^)]*)\) ->> '(\w+)'\)`)
)

// translated turns what the suite writes in the words of the standard into those of the
// servers.
func translated(sql string) string {
	sql = uniques.ReplaceAllString(sql, "$1 ($2(100))") // MySQL indexes no whole text
	sql = instants.ReplaceAllString(sql, "TIMESTAMP '$1'")
	return fields.ReplaceAllString(sql, "CONVERT(JSON_UNQUOTE(JSON_EXTRACT($1, '$$.$2')) USING utf8mb4)")
}

func (h *harness) session(t testing.TB) *session {
	t.Helper()
	s, err := h.open(t, "shop").connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.exec(t.Context(), "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES'; USE "+quote(h.schema)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (h *harness) Exec(t testing.TB, sql string) {
	t.Helper()
	s := h.session(t)
	defer s.close()
	if _, err := s.exec(t.Context(), translated(sql)); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (h *harness) Query(t testing.TB, sql string) [][]*string {
	t.Helper()
	s := h.session(t)
	defer s.close()
	rows, err := s.query(t.Context(), translated(sql))
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

func (h *harness) Expire(t testing.TB) {
	t.Helper()
	h.Exec(t, "UPDATE _tailrace.owners SET heartbeat = heartbeat - INTERVAL 1 MINUTE")
}

func (h *harness) Kill(t testing.TB, w sink.Writer) {
	t.Helper()
	s := h.session(t)
	defer s.close()
	if err := endSessions(context.Background(), s, w.(*Writer).id); err != nil {
		t.Fatal(err)
	}
}
