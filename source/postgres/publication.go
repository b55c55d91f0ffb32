package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// publication is one as the catalogue has it.
type publication struct {
	name      string
	allTables bool
	schemas   bool // holds tables by schema (15+)
	publishes string
	viaRoot   bool
	tables    map[uint32]change.Name // named one by one
	sends     map[uint32]bool        // all that it sends, roots in place of leaves if viaRoot
}

// wantedPublication is what one of ours must be.
type wantedPublication struct {
	name      string
	publishes string
}

var (
	mainPublishes   = "insert, update, delete, truncate"
	appendPublishes = "insert, truncate"
)

// membersPerStatement keeps one ALTER PUBLICATION readable and short-lived.
const membersPerStatement = 500

// planPublication returns the statements that make a publication of ours hold
// exactly the given tables. ONLY keeps the children of a table with heirs out;
// a partitioned table brings its partitions all the same.
func planPublication(want wantedPublication, have *publication, tables map[uint32]change.Name) []string {
	var plan []string
	name := ident(want.name)
	if have == nil {
		plan = append(plan, fmt.Sprintf("CREATE PUBLICATION %s WITH (publish = '%s', publish_via_partition_root = true)", name, want.publishes))
		have = &publication{}
	} else if have.publishes != want.publishes || !have.viaRoot {
		plan = append(plan, fmt.Sprintf("ALTER PUBLICATION %s SET (publish = '%s', publish_via_partition_root = true)", name, want.publishes))
	}
	plan = append(plan, members(name, "DROP", have.tables, tables)...)
	return append(plan, members(name, "ADD", tables, have.tables)...)
}

// members lists the statements for tables in a but not in b.
func members(publication, verb string, a, b map[uint32]change.Name) []string {
	var list []string
	for oid, n := range a {
		if _, ok := b[oid]; !ok {
			list = append(list, "ONLY "+qualified(n))
		}
	}
	slices.Sort(list)
	var plan []string
	for part := range slices.Chunk(list, membersPerStatement) {
		plan = append(plan, "ALTER PUBLICATION "+publication+" "+verb+" TABLE "+strings.Join(part, ", "))
	}
	return plan
}

// readPublications reads those of the given names that exist.
func readPublications(ctx context.Context, conn *pgx.Conn, names []string) (map[string]*publication, error) {
	schemas := "false"
	if versionOf(conn.PgConn()) >= 15 {
		schemas = "EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid)"
	}
	result, err := conn.Query(ctx, `
SELECT p.pubname, p.puballtables, `+schemas+`, concat_ws(', ', CASE WHEN p.pubinsert THEN 'insert' END,
         CASE WHEN p.pubupdate THEN 'update' END, CASE WHEN p.pubdelete THEN 'delete' END,
         CASE WHEN p.pubtruncate THEN 'truncate' END), p.pubviaroot
FROM pg_publication p WHERE p.pubname = ANY($1)`, names)
	if err != nil {
		return nil, fmt.Errorf("read publications: %w", err)
	}
	found := map[string]*publication{}
	var p publication
	_, err = pgx.ForEachRow(result, []any{&p.name, &p.allTables, &p.schemas, &p.publishes, &p.viaRoot}, func() error {
		one := p
		one.tables, one.sends = map[uint32]change.Name{}, map[uint32]bool{}
		found[one.name] = &one
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read publications: %w", err)
	}
	result, err = conn.Query(ctx, `
SELECT p.pubname, true, c.oid, n.nspname, c.relname
FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY($1)
UNION ALL
SELECT t.pubname, false, c.oid, n.nspname, c.relname
FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = ANY($1)`, names)
	if err != nil {
		return nil, fmt.Errorf("read the tables of publications: %w", err)
	}
	var pub string
	var named bool
	var oid uint32
	var n change.Name
	_, err = pgx.ForEachRow(result, []any{&pub, &named, &oid, &n.Schema, &n.Table}, func() error {
		if p := found[pub]; p == nil {
			return nil
		} else if named {
			p.tables[oid] = n
		} else {
			p.sends[oid] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the tables of publications: %w", err)
	}
	return found, nil
}

// plan works out what Publish would run, and refuses what may not be.
func (s *Source) plan(ctx context.Context, conn *pgx.Conn, followed []source.Followed) ([]string, error) {
	oids := oidsFollowed(followed)
	tables, err := s.readTables(ctx, conn, oids)
	if err != nil {
		return nil, err
	}
	byOID := make(map[uint32]*table, len(tables))
	for _, t := range tables {
		byOID[t.oid] = t
	}
	main, appendix := map[uint32]change.Name{}, map[uint32]change.Name{}
	for _, f := range followed {
		t := byOID[f.Table.ID]
		if t == nil {
			return nil, fault.Refuse("take the table out of the configuration, or make it again and copy it with tailrace backfill --table",
				"table %s (OID %d) is no longer there", f.Table.Name, f.Table.ID)
		}
		if f.AppendOnly {
			appendix[t.oid] = t.name
			continue
		}
		if v := t.judge(); !v.serves {
			return nil, fault.Refuse(v.remedy+"; or declare the flow append_only: true",
				"table %s cannot be published with updates and deletes: %s", t.name, v.why)
		}
		main[t.oid] = t.name
	}
	have, err := readPublications(ctx, conn, s.names.publications())
	if err != nil {
		return nil, err
	}
	if !s.names.ownPubs {
		return nil, s.checkNamed(have[s.names.main], main, appendix, byOID)
	}
	for _, p := range have {
		if p.allTables || p.schemas {
			return nil, fault.Refuse("DROP PUBLICATION "+ident(p.name),
				"publication %s of this pipeline's name publishes all tables (of the database or of a schema), also those whose updates that would break", p.name)
		}
	}
	plan := planPublication(wantedPublication{s.names.main, mainPublishes}, have[s.names.main], main)
	return append(plan, planPublication(wantedPublication{s.names.appendix, appendPublishes}, have[s.names.appendix], appendix)...), nil
}

// checkNamed judges a publication that the user named: it is used as it is.
func (s *Source) checkNamed(p *publication, main, appendix map[uint32]change.Name, tables map[uint32]*table) error {
	all := map[uint32]change.Name{}
	for oid, n := range main {
		all[oid] = n
	}
	for oid, n := range appendix {
		all[oid] = n
	}
	name := ident(s.names.main)
	if p == nil {
		return fault.Refuse(strings.Join(planPublication(wantedPublication{s.names.main, mainPublishes}, nil, all), "; "),
			"publication %s does not exist", s.names.main)
	}
	for _, t := range tables {
		if t.kind == "p" && !p.viaRoot {
			return fault.Refuse("ALTER PUBLICATION "+name+" SET (publish_via_partition_root = true)",
				"publication %s sends the partitions of %s one by one, not as the table itself", s.names.main, t.name)
		}
	}
	sent := make(map[uint32]change.Name, len(p.sends))
	for oid := range p.sends {
		sent[oid] = change.Name{}
	}
	if missing := members(name, "ADD", all, sent); len(missing) > 0 {
		return fault.Refuse(strings.Join(missing, "; "), "publication %s lacks tables", s.names.main)
	}
	if p.publishes != mainPublishes && (len(main) > 0 || !strings.Contains(p.publishes, "insert")) {
		return fault.Refuse("ALTER PUBLICATION "+name+" SET (publish = '"+mainPublishes+"')",
			"publication %s publishes only %s: other changes would be missed in silence", s.names.main, p.publishes)
	}
	return nil
}

// PlanPublications implements source.Source.
func (s *Source) PlanPublications(ctx context.Context, tables []source.Followed) ([]string, error) {
	var plan []string
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		plan, err = s.plan(ctx, conn, tables)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("plan publications: %w", err)
	}
	return plan, nil
}

// Publish implements source.Source.
func (s *Source) Publish(ctx context.Context, tables []source.Followed) error {
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		plan, err := s.plan(ctx, conn, tables)
		if err != nil || len(plan) == 0 {
			return err
		}
		if err := execDDL(ctx, conn, plan); err != nil {
			if isState(err, "42501") { // insufficient privilege
				return fault.Refuse("an administrator runs: "+strings.Join(plan, "; "), "may not set up the publications: %v", err)
			}
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set up publications: %w", err)
	}
	return nil
}
