package postgres

import (
	"testing"

	"tailrace/internal/dbtest"
	"tailrace/sink"
	"tailrace/sink/sinktest"
)

func TestContract(t *testing.T) {
	server := dbtest.Postgres(t)
	sinktest.Run(t, func(t testing.TB) sinktest.Harness { return newHarness(t, server) })
}

func TestPoints(t *testing.T) {
	server := dbtest.Postgres(t)
	sinktest.RunPoints(t, func(t testing.TB) sinktest.PointHarness { return newHarness(t, server) })
}

// harness is a database of its own on the test server.
type harness struct {
	server *dbtest.Server
	dsn    string
}

func newHarness(t testing.TB, server *dbtest.Server) *harness {
	return &harness{server, server.Database(t)}
}

func (h *harness) Open(t testing.TB) sink.Writer { t.Helper(); return h.OpenAs(t, "shop") }

func (h *harness) OpenAs(t testing.TB, pipeline string) sink.Writer {
	t.Helper()
	w, err := New(Config{DSN: h.dsn, Pipeline: pipeline})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return w
}

func (h *harness) Schema() string                { return "public" }
func (h *harness) Exec(t testing.TB, sql string) { t.Helper(); h.server.Exec(t, h.dsn, sql) }
func (h *harness) Micros(expr string) string {
	return "(extract(epoch FROM " + expr + ") * 1000000)::bigint"
}
func (h *harness) Has() sinktest.Features {
	return sinktest.Features{Depose: true, Keys: true, CaseTwins: true, Secondary: true, SourceText: true}
}

func (h *harness) Query(t testing.TB, sql string) [][]*string {
	t.Helper()
	conn := h.server.Connect(t, h.dsn).PgConn()
	s := &session{conn: conn}
	defer s.close(t.Context())
	if err := s.exec(t.Context(), pinned); err != nil {
		t.Fatal(err)
	}
	rows, err := s.query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

func (h *harness) Expire(t testing.TB) {
	t.Helper()
	h.Exec(t, "UPDATE _tailrace.owners SET heartbeat = heartbeat - interval '1 minute'")
}

func (h *harness) Kill(t testing.TB, w sink.Writer) {
	t.Helper()
	h.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '% "+w.(*Writer).id+"'")
}
