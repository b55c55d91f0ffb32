package mysql

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	textType   = change.Type{Kind: change.Text, Name: "text", ID: 25, BuiltIn: true}
	bigintType = change.Type{Kind: change.Int64, Name: "bigint", ID: 20, BuiltIn: true}
)

// goldenShapes have names that need quoting, a composite key, a generated and an
// untracked column.
func goldenShapes() map[string]*shape {
	const collation = "utf8mb4_nopad_bin"
	shaped := func(kind scd.Kind, sequence *change.Type, columns ...scd.Column) *shape {
		t := &scd.Target{Name: change.Name{Schema: "shop", Table: "or`ders"}, Kind: kind, Columns: columns, Sequence: sequence, Sequenced: sequence != nil}
		l := layoutOf(t)
		sh := &shape{target: t, name: qualifiedName(t.Name), keys: t.Keys(), index: "`PRIMARY`", exact: true, session: collation, record: "_tailrace.tailrace_before_0"}
		for i, c := range columns {
			sh.columns = append(sh.columns, column{plain: c.Name, name: quote(c.Name), typ: l.columns[i], source: c.Type, collation: collation, key: c.Key, tracked: c.Tracked, generated: c.Name == "double"})
		}
		t.AppendOnly = len(sh.keys) == 0
		sh.start = column{plain: scd.StartColumn, name: startColumn, typ: l.start, source: sequenceOf(t), collation: collation, bound: true}
		sh.end = sh.start
		sh.end.plain, sh.end.name = scd.EndColumn, endColumn
		sh.records = recordsTable(recordsName("shop", t.Name))
		return sh
	}
	id := scd.Column{Name: "id", Type: bigintType, Key: true}
	at := scd.Column{Name: "at", Type: textType, Key: true}
	total := scd.Column{Name: "Total", Type: change.Type{Kind: change.Numeric, Precision: 12, Scale: 2}, Tracked: true}
	note := scd.Column{Name: "select", Type: textType}
	ratio := scd.Column{Name: "ratio", Type: change.Type{Kind: change.Float32}, Tracked: true}
	double := scd.Column{Name: "double", Type: bigintType}
	return map[string]*shape{
		"type1":           shaped(scd.Type1, nil, id, total, note, ratio),
		"type1-composite": shaped(scd.Type1, nil, at, total, id),
		"type1-keys-only": shaped(scd.Type1, nil, id),
		"type1-generated": shaped(scd.Type1, nil, id, double, total),
		"append-only":     shaped(scd.Type1, nil, total, note),
		"type2":           shaped(scd.Type2, nil, id, total),
		"type2-untracked": shaped(scd.Type2, nil, at, total, note, id),
		"sequenced1":      shaped(scd.Type1, &bigintType, id, total),
		"sequenced2":      shaped(scd.Type2, &bigintType, at, total, id),
		"sequenced2-text": shaped(scd.Type2, &textType, id, double),
	}
}

// Every statement about a target, for every kind of shape, as a file to read. -update
// rewrites them.
func TestStatementsAreTheGoldenOnes(t *testing.T) {
	for name, sh := range goldenShapes() {
		var b strings.Builder
		say := func(what string, parts ...string) {
			fmt.Fprintf(&b, "-- %s\n%s\n\n", what, strings.Join(parts, "/* list */"))
		}
		say2 := func(what, head, tail string) { say(what, head, tail) }
		say("create", createSQL(sh.target.Name, sh.target, layoutOf(sh.target), sh.session))
		head, tail := sh.insertSQL(false)
		say2("insert", head, tail)
		say("load", sh.loadSQL("name", false))
		if !sh.target.AppendOnly {
			head, tail = sh.fetchSQL()
			say2("fetch", head, tail)
		}
		switch {
		case sh.target.AppendOnly:
		case sh.target.Kind == scd.Type1:
			head, tail = sh.insertSQL(true)
			say2("upsert", head, tail)
			say("load over what is there", sh.loadSQL("name", true))
			head, tail = sh.deleteSQL(false)
			say2("delete", head, tail)
			head, tail = sh.lockSQL()
			say2("lock", head, tail)
			head, tail = sh.patchSQL(func(c *column) bool { return c.key || c.plain == "Total" })
			say2("patch", head, tail)
		default:
			for _, free := range []bool{false, true} {
				if free && sh.list(untracked, named) == "" {
					continue
				}
				head, tail = sh.endSQL(free)
				say2(fmt.Sprintf("end versions, free %v", free), head, tail)
			}
		}
		if sh.target.Kind == scd.Type2 && sh.target.Sequenced {
			head, tail = sh.countSQL()
			say2("count versions", head, tail)
			head, tail = sh.deleteSQL(true)
			say2("drop versions", head, tail)
		}
		if sh.target.Kind == scd.Type2 && !sh.target.Sequenced {
			say("truncate", sh.truncateVersionsSQL(1_700_000_000_000_001))
			say("record", sh.createRecordSQL())
			head, tail = sh.rememberSQL()
			say2("remember", head, tail)
			say("remember open", sh.rememberOpenSQL())
			for _, whole := range []bool{false, true} {
				forget, restore := sh.undoSQL(whole)
				say(fmt.Sprintf("forget, whole %v", whole), forget[:]...)
				say(fmt.Sprintf("restore, whole %v", whole), restore[:]...)
			}
		}
		if sh.target.Sequenced {
			say("create records", createRecordsSQL(recordsName("shop", sh.target.Name)))
			w := &Writer{cfg: Config{Pipeline: "shop"}}
			say("look up", string(w.appendLookups(nil, sh.target, []sequenced.Lookup{{Key: []byte{1}, Seq: []byte{2}}, {Key: []byte{3}}})))
			say("below", notAbove(sequenced.Place{Seq: []byte{0, 255}}))
		} else if sh.target.Kind == scd.Type1 {
			for _, step := range sh.replaceSQL("_tailrace.stage", "") {
				say("resync", step.sql)
			}
		}
		if !sh.target.AppendOnly && !sh.target.Sequenced {
			say("notes of a resync", sh.createNotesSQL("_tailrace.notes"))
			for _, sql := range sh.differSQL("_tailrace.stage", "_tailrace.notes") {
				say("note what differs", sql)
			}
			if sh.target.Kind == scd.Type1 {
				for _, step := range sh.replaceSQL("_tailrace.stage", "_tailrace.notes") {
					say("resync of what is noted", step.sql)
				}
			}
		}
		goldenUndo(sh, say)
		say("stage of a resync", sh.createStageSQL("_tailrace.stage", sh.session))
		for _, i := range invariants(sh.name, sh.target) {
			say("invariant: "+i.what, i.sql)
		}
		path := filepath.Join("testdata", "sql", name+".sql")
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != b.String() {
			t.Errorf("%s differs; run with -update and read the difference", path)
		}
	}
}

// goldenUndo shows what keeps and restores: from one table, and what an earlier one has not
// restored. The second was made before the last column.
func goldenUndo(sh *shape, say func(what string, parts ...string)) {
	fed := *sh
	fed.feed = &feed{table: "_tailrace.changes"}
	k := &held{id: 7, target: sh.target.Name, holds: sh.holds(), layout: sh.heldLayout()}
	say("keep", k.createSQL("TABLE IF NOT EXISTS"))
	say("keep all", sh.keepAllSQL(k))
	switch k.holds {
	case heldRows:
		say("kept fields", sh.keptFields(k))
		for _, sql := range []string{sh.addNetSQL(k), sh.alike(), sh.back([]*held{k, k}), sh.createSurplusSQL(), fed.intoFeedFrom("insert", change.LSN(1), "x")} {
			say("count", sql)
		}
		return
	case heldNewest:
		head, tail := sh.keepNewestSQL(k)
		say("keep newest", head, tail)
	default:
		head, tail := sh.keepSQL(k)
		say("keep rows", head, tail)
		head, tail = sh.keepNoneSQL(k)
		say("keep none", head, tail)
	}
	later := &held{id: 8, target: sh.target.Name, holds: k.holds, layout: k.layout}
	later.layout.Columns = later.layout.Columns[:max(0, len(later.layout.Columns)-1)]
	say("remove", sh.removeSQL(k, "", nil, false))
	say("remove whole", sh.removeSQL(k, "", nil, true))
	say("restore", sh.restoreSQL(k, "", nil))
	say("done", k.createDoneSQL(doneTable))
	say("add done", k.addDoneSQL(doneTable, k))
	say("remove the rest", sh.removeSQL(later, doneTable, k, false))
	say("restore the rest", sh.restoreSQL(later, doneTable, k))
	say("note", fed.noteKeptSQL(k, rewindNotes))
	if sh.target.Sequenced {
		r := &held{id: 9, target: sh.target.Name, holds: heldRecords}
		head, tail := sh.keepRecordsSQL(r)
		for _, sql := range []string{r.createSQL("TABLE IF NOT EXISTS"), head + "/* list */" + tail, sh.keepRecordsWhereSQL(r, "time < 1"), r.createDoneSQL(doneTable), r.addDoneSQL(doneTable, r),
			sh.removeRecordsSQL(r, doneTable, r), sh.restoreRecordsSQL(r, doneTable, r)} {
			say("records", sql)
		}
	}
}

// A key's texts share what an index entry has, whatever else is in the key.
func TestKeysFitIntoAnIndexEntry(t *testing.T) {
	for texts := range 9 {
		for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
			target := &scd.Target{Kind: kind, Columns: []scd.Column{{Name: "id", Type: bigintType, Key: true}, {Name: "v", Type: textType}}}
			for range texts {
				target.Columns = append(target.Columns, scd.Column{Type: textType, Key: true}, scd.Column{Type: change.Type{Kind: change.Bytes}, Key: true})
			}
			l := layoutOf(target)
			size := 0
			for i, c := range l.columns {
				if target.Columns[i].Key {
					size += c.keySize()
				}
			}
			if kind == scd.Type2 {
				size += l.start.keySize()
			}
			if size > keyBytes {
				t.Errorf("%d texts, type %d: %d bytes", texts, kind, size)
			}
			if l.columns[1] != longtext {
				t.Errorf("a text outside the key is %s", l.columns[1])
			}
		}
	}
}

func TestManyShortTextsFitIntoARow(t *testing.T) {
	target := &scd.Target{}
	for i := range 300 {
		target.Columns = append(target.Columns, scd.Column{Name: fmt.Sprint(i), Type: change.Type{Kind: change.Text, Length: 200}})
	}
	for i, c := range layoutOf(target).columns {
		if c != longtext {
			t.Fatalf("column %d is %s", i, c)
		}
	}
	if c := layoutOf(&scd.Target{Columns: target.Columns[:20]}).columns[0]; c != varchar(200) {
		t.Errorf("of twenty columns each is %s", c)
	}
}

func TestVersionsAreRead(t *testing.T) {
	for text, want := range map[string]server{
		"10.11.14-MariaDB-0+deb12u2-log": {mariaDB: true, version: 101114},
		"5.5.5-10.6.2-MariaDB":           {mariaDB: true, version: 100602},
		"8.0.36":                         {version: 80036},
		"9.7.0-commercial":               {version: 90700},
	} {
		if mariaDB, version := parseVersion(text); mariaDB != want.mariaDB || version != want.version {
			t.Errorf("%s: %v %d", text, mariaDB, version)
		}
	}
}

// Numerics get the column's scale exactly, or are refused.
func TestNumericsAreNeverRounded(t *testing.T) {
	c := column{typ: columnType{store: asDecimal, width: 5, scale: 2}, source: change.Type{Kind: change.Numeric, Precision: 5, Scale: 2}}
	for text, want := range map[string]string{
		"1": "1.00", "1.5": "1.50", "-0.25": "-0.25", "123.45": "123.45", "1.500": "1.50", "0": "0.00", "007.1": "007.10",
		"1.005": "", "1234": "", "NaN": "", "1e3": "", "1;DROP TABLE t": "", "": "", "-": "",
	} {
		data, _, err := c.payload(nil, change.Value{State: change.AsText, Data: []byte(text)})
		if (err == nil) != (want != "") || err == nil && string(data) != want {
			t.Errorf("%q becomes %q, %v; want %q", text, data, err, want)
		}
	}
	whole := column{typ: columnType{store: asDecimal, width: 3}, source: c.source}
	if data, _, err := whole.payload(nil, change.Value{State: change.AsText, Data: []byte("12.0")}); err != nil || string(data) != "12" {
		t.Errorf("12.0 without decimals becomes %q, %v", data, err)
	}
}

// The rules of steps, beside what the contract asks of a server.
func TestStepsAreJudged(t *testing.T) {
	row := change.Row{}
	open := &newest{start: 100, open: true}
	closed := &newest{start: 50, end: 90}
	for name, c := range map[string]struct {
		stored *newest
		chain  chain
		same   bool
		want   string
	}{
		"a first version":              {nil, chain{{N: 1, Lo: 7, Row: row}}, false, "{ends:false end:0 void:false begun:[{step:0 at:7 until:0 bounded:false}]}"},
		"an equal version":             {open, chain{{N: 1, Lo: 200, Row: row}}, true, "{ends:false end:0 void:true begun:[]}"},
		"a change before the start":    {open, chain{{N: 1, Lo: 7, Row: row}}, false, "{ends:true end:101 void:false begun:[{step:0 at:101 until:0 bounded:false}]}"},
		"a close of nothing":           {closed, chain{{N: 1, Lo: 200}}, false, "{ends:false end:0 void:true begun:[]}"},
		"a close, then a version":      {open, chain{{N: 1, Lo: 200}, {N: 2, Lo: 201, LoVoid: 150, Row: row}}, false, "{ends:true end:200 void:false begun:[{step:1 at:201 until:0 bounded:false}]}"},
		"void, then a close":           {open, chain{{N: 1, Lo: 900, Row: row}, {N: 2, Lo: 901, LoVoid: 150}}, true, "{ends:true end:150 void:true begun:[]}"},
		"two versions after a close":   {closed, chain{{N: 1, Lo: 20, Row: row}, {N: 2, Lo: 21, Row: row}}, false, "{ends:false end:0 void:false begun:[{step:0 at:91 until:92 bounded:true} {step:1 at:92 until:0 bounded:false}]}"},
		"an equal row after its close": {closed, chain{{N: 1, Lo: 200, Row: row}}, true, "{ends:false end:0 void:false begun:[{step:0 at:200 until:0 bounded:false}]}"},
	} {
		if got := fmt.Sprintf("%+v", judgeChain(c.stored, c.chain, c.same)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestConstantsCannotEnd(t *testing.T) {
	if got := bind("x = ? AND y = ?", "it's ? \\", []byte("a'")); got != `x = 'it''s ? \' AND y = x'6127'` {
		t.Errorf("bound: %s", got)
	}
	if got := quote("a`; DROP TABLE t; --"); got != "`a``; DROP TABLE t; --`" {
		t.Errorf("quoted: %s", got)
	}
}
