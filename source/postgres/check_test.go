package postgres

import (
	"strings"
	"testing"

	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

func wantFinding(t *testing.T, findings []source.Finding, blocks bool, what, remedy string) {
	t.Helper()
	for _, f := range findings {
		if f.Blocks == blocks && strings.Contains(f.What, what) && strings.Contains(f.Remedy, remedy) {
			return
		}
	}
	t.Errorf("no finding (blocks %v) of %q with the remedy %q among %+v", blocks, what, remedy, findings)
}

func blocking(findings []source.Finding) (n int) {
	for _, f := range findings {
		if f.Blocks {
			n++
		}
	}
	return n
}

func TestCheckFindsNothingWrongWhereNothingIs(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		for range 2 {
			findings, err := f.source.Check(testContext(t), f.followed())
			if err != nil || blocking(findings) != 0 {
				t.Errorf("%+v, %v", findings, err)
			}
			f.publish()
			f.begin()
		}
	})
}

func TestCheckNamesEachObstacleWithItsRemedy(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Setting("wal_level", "replica"), dbtest.Setting("wal_sender_timeout", "0"),
		dbtest.Setting("max_replication_slots", "1"), dbtest.Setting("max_wal_senders", "2"), dbtest.Setting("max_prepared_transactions", "5"))
	f := bare(t, server, "CREATE TABLE nokey (v int)", "CREATE TABLE nothing (id int PRIMARY KEY)", "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
		"CREATE TABLE feed (v int)", "CREATE UNLOGGED TABLE u (id int PRIMARY KEY)", "CREATE TABLE gone (id int PRIMARY KEY)",
		"CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE p1 PARTITION OF p DEFAULT", "ALTER TABLE p1 REPLICA IDENTITY NOTHING",
		"BEGIN; INSERT INTO feed VALUES (1); PREPARE TRANSACTION 'forgotten'",
		"SELECT pg_create_physical_replication_slot('taken')")
	var followed []source.Followed
	for _, r := range f.relations() {
		followed = append(followed, source.Followed{Table: r.Table, AppendOnly: r.Table.Name.Table == "feed"})
	}
	f.exec("DROP TABLE gone")
	findings, err := f.source.Check(testContext(t), followed)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		blocks       bool
		what, remedy string
	}{
		{true, "wal_level is replica", "ALTER SYSTEM SET wal_level = 'logical'"},
		{true, "all 1 replication slots are taken", "max_replication_slots"},
		{false, "wal_sender_timeout is 0", "ALTER SYSTEM SET wal_sender_timeout"},
		{false, "'forgotten'", "ROLLBACK PREPARED 'forgotten'"},
		{true, "public.nokey cannot be followed with updates and deletes: it has no primary key", `ALTER TABLE "public"."nokey" REPLICA IDENTITY FULL`},
		{true, "public.nothing cannot be followed", `ALTER TABLE "public"."nothing" REPLICA IDENTITY DEFAULT`},
		{true, "public.p cannot be followed with updates and deletes: partition public.p1", `ALTER TABLE "public"."p1" REPLICA IDENTITY DEFAULT`},
		{false, "public.feed is followed append-only", "REPLICA IDENTITY FULL"},
		{true, "public.u cannot be followed: an unlogged table", ""},
		{true, "public.gone is no longer there", ""},
		{false, "ACCESS SHARE", "no ALTER TABLE"},
	} {
		wantFinding(t, findings, w.blocks, w.what, w.remedy)
	}
	if _, err := f.source.Begin(testContext(t)); fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "wal_level") {
		t.Errorf("begin: %v", err)
	}
	f.exec("ROLLBACK PREPARED 'forgotten'")
}

func TestBeginNamesThatNoSlotIsFree(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Setting("max_replication_slots", "1"))
	f := bare(t, server, "SELECT pg_create_physical_replication_slot('taken')")
	if _, err := f.source.Begin(testContext(t)); fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "max_replication_slots") {
		t.Errorf("got %v", err)
	}
}
