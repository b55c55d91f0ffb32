package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd"
)

// shapes for the golden files: names that need quoting, a composite key, a
// generated and an untracked column.
func goldenShapes() map[string]*shape {
	of := func(name, base string, key, tracked bool) column {
		return column{plain: name, name: quote(name), base: base, array: base + "[]", equals: "=", key: key, tracked: tracked}
	}
	shaped := func(kind scd.Kind, columns ...column) *shape {
		sh := &shape{target: &scd.Target{Name: change.Name{Schema: "public", Table: `or"ders`}, Kind: kind}, name: `"public"."or""ders"`, columns: columns, stage: newStage(1), record: "pg_temp.tailrace_before_0"}
		for i, c := range columns {
			sh.target.Columns = append(sh.target.Columns, scd.Column{Name: c.plain, Key: c.key, Tracked: c.tracked})
			if c.key {
				sh.keys = append(sh.keys, i)
			}
		}
		sh.target.AppendOnly = len(sh.keys) == 0
		sh.start = of(scd.StartColumn, "timestamp with time zone", false, false)
		return sh
	}
	id := of("id", "bigint", true, false)
	at := of("at", "text", true, false)
	total := of("Total", "numeric", false, true)
	note := of("select", "text", false, false)
	double := of("double", "integer", false, false)
	double.generated = true
	sequenced := func(sequence string, sh *shape) *shape {
		sh.target.Sequenced, sh.records = true, recordsTable(recordsName("shop", sh.target.Name))
		sh.target.Sequence = &change.Type{Kind: change.Int64}
		if sequence == "text" {
			sh.target.Sequence = &change.Type{Kind: change.Text}
		}
		sh.start = of(scd.StartColumn, sequence, false, false)
		return sh
	}
	always := shaped(scd.Type1, id, total)
	always.identityAlways = true
	return map[string]*shape{
		"type1":           shaped(scd.Type1, id, total, note),
		"type1-composite": shaped(scd.Type1, at, total, id),
		"type1-keys-only": shaped(scd.Type1, id),
		"type1-generated": shaped(scd.Type1, id, double, total),
		"type1-identity":  always,
		"append-only":     shaped(scd.Type1, total, note),
		"type2":           shaped(scd.Type2, id, total),
		"type2-untracked": shaped(scd.Type2, at, total, note, id),
		"sequenced1":      sequenced("", shaped(scd.Type1, id, total)),
		"sequenced2":      sequenced("bigint", shaped(scd.Type2, at, total, id)),
		"sequenced2-text": sequenced("text", shaped(scd.Type2, id, double)),
	}
}

// Every statement about a target, for every kind of shape, as a file to read.
// -update rewrites them.
func TestStatementsAreTheGoldenOnes(t *testing.T) {
	for name, sh := range goldenShapes() {
		var b strings.Builder
		say := func(what, sql string) { fmt.Fprintf(&b, "-- %s\n%s\n\n", what, sql) }
		var types []destinationType
		for _, c := range sh.columns {
			types = append(types, destinationType{name: c.base})
		}
		say("create", createSQL(sh.target.Name, sh.target, types, destinationType{name: sh.start.base}))
		say("copy binary", sh.copySQL(true))
		say("copy text", sh.copySQL(false))
		say("truncate", sh.truncateSQL())
		say("row upsert", sh.upsertRowSQL())
		if !sh.target.AppendOnly {
			say("add key", addKeySQL(sh.target.Name, sh.target))
			say("stage", sh.createStageSQL())
		}
		if !sh.target.AppendOnly && !sh.target.Sequenced {
			for _, gaps := range []bool{false, true} {
				say(fmt.Sprintf("copy into stage, gaps %v", gaps), copyInto(sh.stage.name, sh.stageList(gaps, false), true))
			}
		}
		if sh.target.Sequenced {
			for _, sql := range createRecordsSQL(recordsName("shop", sh.target.Name), sh.target.Kind) {
				say("create records", sql)
			}
			say("look up", lookupSQL(sh.records))
			if sh.target.Kind == scd.Type2 {
				say("look up the newest", newestSQL(sh.records))
				say("look up suffixes", suffixSQL(sh.records))
			}
			say("keys below", belowSQL(sh.records))
			say("keys without a record", orphansSQL(sh.records, bytesLiteral([]byte{0, 255}), bytesLiteral(nil)))
			say("truncate records", truncateRecordsSQL(sh.records))
			say("remove records", removeRecordsSQL(sh.records))
			say("put records", putRecordsSQL(sh.records, sh.target.Kind))
			if sh.target.Kind == scd.Type1 {
				say("move records", moveRecordsSQL(sh.records))
			}
			say("forget", forgetSQL(sh.records))
		}
		switch {
		case sh.target.AppendOnly:
		case sh.target.Kind == scd.Type2 && sh.target.Sequenced:
			say("end versions", sh.endVersionsSQL())
			say("drop versions", sh.dropVersionsSQL())
			say("begin a version", sh.sql(rowBegin))
			say("begin staged versions", sh.beginStagedSQL())
		case sh.target.Kind == scd.Type1:
			say("row patch", sh.sql(rowPatch))
			say("row patch, restored", sh.sql(rowPatchIfThere))
			say("row delete", sh.sql(rowDelete))
			say("keys delete", sh.sql(keysDelete))
			say("fill moves", sh.sql(moveFill))
			say("rows that cannot be filled, restored", sh.sql(moveUnfilled))
			say("insert moves", sh.sql(moveInsert))
			say("insert staged", sh.sql(insertStaged))
			say("upsert staged", sh.sql(upsertStaged))
			say("patch staged", sh.sql(patchStaged))
			say("delete staged keys", sh.sql(stagedDelete))
		default:
			say("copy several into stage", copyInto(sh.stage.name, sh.stageList(true, true), true))
			say("row step", sh.sql(rowStep))
			say("fill steps", sh.sql(stepFill))
			say("single steps", sh.sql(stepStaged))
			say("several steps", sh.sql(stepsStaged))
			say("truncate beside steps", sh.truncateStepsSQL(true))
			say("truncate", sh.truncateStepsSQL(false))
			say("record", sh.createRecordSQL())
			say("remember", sh.rememberSQL())
			say("remember open", sh.rememberOpenSQL())
			forget, restore := sh.undoSQL(false)
			say("undo, forget", forget)
			say("undo, restore", restore)
			forget, restore = sh.undoSQL(true)
			say("undo all, forget", forget)
			say("undo all, restore", restore)
		}
		if !sh.target.Sequenced {
			for _, c := range []struct {
				what, notes string
				part        bool
			}{{what: "resync"}, {what: "repair", part: true}, {what: "resync of what is noted", notes: `_tailrace."notes"`}} {
				if c.what != "resync" && len(sh.keys) == 0 {
					continue // nothing to name rows by
				}
				steps := sh.replaceSQL(`_tailrace."stage"`, c.notes, c.part)
				if sh.target.Kind == scd.Type2 {
					steps = sh.replaceVersionsSQL(`_tailrace."stage"`, c.notes, "'2026-01-02 03:04:05+00'", c.part)
				}
				if c.part {
					say(c.what, sh.createGoneSQL())
				}
				if c.notes != "" {
					for _, sql := range sh.differSQL(`_tailrace."stage"`, c.notes) {
						say("note what differs", sql)
					}
				}
				for _, step := range steps {
					say(c.what, step.sql)
				}
			}
		}
		const kept, state = `_tailrace."undo"`, `pg_temp."state"`
		columns := sh.keptColumns()
		say("keep: make the table", sh.createKeptSQL(kept))
		say("keep all", sh.keepAllSQL(kept, columns))
		if sh.target.AppendOnly {
			say("keep a row", sh.keepRowSQL(kept))
			say("rewind: count", sh.netSQL("pg_temp.net", state))
			say("rewind: leave", sh.leaveSQL("pg_temp.net"))
			say("rewind: come", sh.comeSQL("pg_temp.net", state))
		} else {
			say("keep keys", sh.keepKeysSQL(kept, columns))
			for _, sql := range sh.restoreSQL(state) {
				say("rewind", sql)
			}
		}
		if sh.target.Sequenced {
			say("keep records: make the table", createKeptRecordsSQL(kept))
			say("keep records", keepRecordsSQL(kept, sh.records))
			say("keep records of a truncate", keepRecordsOfSQL(kept, sh.records, "(h.seq, h.at) <= ($1::bytea, $2::bytea)"))
			for _, sql := range restoreRecordsSQL(sh.records, state) {
				say("rewind records", sql)
			}
		}
		net := ""
		if sh.target.AppendOnly {
			net = "pg_temp.net"
		}
		for _, sql := range sh.recallSQL(sh, state, net, columns) {
			say("recall", sql)
		}
		for _, i := range invariants(sh.name, sh.target, startOrder{typ: sh.start.base}) {
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
