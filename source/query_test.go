package source_test

import (
	"strings"
	"testing"

	"tailrace/internal/fault"
	"tailrace/source"
)

func TestAQueryEndsAtItsSemicolon(t *testing.T) {
	for _, c := range []struct {
		query, text string
		mysql       bool
	}{
		{query: "SELECT 1", text: "SELECT 1"},
		{query: " select 1 ; ", text: " select 1 "},
		{query: "SELECT 1;;\n;", text: "SELECT 1"},
		{query: "SELECT 1 -- all; done\n;-- behind ; it\n/* and; */", text: "SELECT 1 -- all; done\n"},
		{query: "/* a /* nested; */ one */ ((SELECT ';'))", text: "/* a /* nested; */ one */ ((SELECT ';'))"},
		{query: "SELECT ';''', \";\"\";\", $$;$$, $x$;$$;$x$, E'\\';', 'a\\';", text: "SELECT ';''', \";\"\";\", $$;$$, $x$;$$;$x$, E'\\';', 'a\\'"},
		{query: "SELECT a$b$c FROM t;", text: "SELECT a$b$c FROM t"},
		{query: "SELECT é FROM tablé;", text: "SELECT é FROM tablé"},
		{query: "WITH a AS (SELECT 1) TABLE a", text: "WITH a AS (SELECT 1) TABLE a"},
		{query: "VALUES (1)", text: "VALUES (1)"},
		{query: "SELECT 'a\\';', \"\\\";\", `;`;", text: "SELECT 'a\\';', \"\\\";\", `;`", mysql: true},
		{query: "SELECT 1 # ;\n--1;", text: "SELECT 1 # ;\n--1", mysql: true},
		{query: "SELECT 1 -- ;", text: "SELECT 1 -- ;", mysql: true},
		{query: "/* a /* not nested; */ SELECT /*!50000 1 */;", text: "/* a /* not nested; */ SELECT /*!50000 1 */", mysql: true},
	} {
		q, err := source.ReadQuery(c.query, c.mysql)
		if err != nil || q.Text != c.text {
			t.Errorf("%q: got %+v, %v", c.query, q, err)
		}
	}
}

func TestWhatIsNoSingleReadingStatementIsRefused(t *testing.T) {
	for query, says := range map[string]string{
		"":                              "is empty",
		" ; -- nothing":                 "is empty",
		"INSERT INTO t VALUES (1)":      "begins with another word",
		"(DELETE FROM t)":               "begins with another word",
		"EXPLAIN SELECT 1":              "begins with another word",
		"'SELECT'":                      "does not begin with a keyword",
		"SELECT 1;\nSELECT 2":           "more than one statement: something stands behind the semicolon, line 2, character 1",
		"SELECT 1; (SELECT 2)":          "more than one statement",
		"SELECT '\x00'":                 "the character NUL",
		"SELECT '\xff'":                 "is not UTF-8",
		"SELECT '; SELECT 2":            "",
		"SELECT 1 /* ; SELECT 2":        "",
		"SELECT $a$ ; SELECT 2":         "",
		"SELECT 1 /* a */ ; ; DROP x; ": "more than one statement",
	} {
		_, err := source.ReadQuery(query, false)
		if says == "" && err == nil { // not closed: the server says so
			continue
		}
		if err == nil || !strings.Contains(err.Error(), says) || fault.KindOf(err) != fault.Operator {
			t.Errorf("%q: %v", query, err)
		}
	}
}

func TestWordsOfAQueryAreFoundOutsideOfQuotesAndComments(t *testing.T) {
	q, err := source.ReadQuery("SELECT `for update`, 'for update' /* for update */ FROM t /*!FOR*/\nuPDATE", true)
	if err != nil || !q.Has("FOR", "UPDATE") || q.Has("UPDATE", "FOR") {
		t.Error(q, err)
	}
	q, err = source.ReadQuery("SELECT `for update`, 'for update' /* for update */ FROM t", true)
	if err != nil || q.Has("FOR", "UPDATE") {
		t.Error(q, err)
	}
	if got := q.Place(8); got != "line 1, character 9" {
		t.Error(got)
	}
}

func FuzzReadQuery(f *testing.F) {
	f.Add("SELECT E'\\", true)
	f.Add("SELECT $a", false)
	f.Add("--", true)
	f.Fuzz(func(t *testing.T, text string, mysql bool) {
		if q, err := source.ReadQuery(text, mysql); err == nil && !strings.HasPrefix(text, q.Text) {
			t.Errorf("%q became %q", text, q.Text)
		}
	})
}
