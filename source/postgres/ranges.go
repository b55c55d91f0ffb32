package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/source"
)

var _ source.Ranger = (*snapshot)(nil)

// Measure implements source.Ranger.
//
// A range is a run of blocks of one file, read by a scan of row identifiers
// (PostgreSQL 14 and later): WHERE ctid >= '(a,0)' AND ctid < '(b,0)'. A row
// version that the snapshot sees keeps its ctid for as long as the snapshot lives,
// unless the file is written anew, which pin notices. The last range is open: the
// file may have grown since.
//
// The planner's row counts and page counts play no part: a table that was never
// analysed has neither. What is cut is the size of the file and of the values
// stored out of line, which are taken to be spread evenly over its blocks.
//
// Left whole are tables that are not of the heap (another access method need not
// know ctid), and partitioned tables with a partition that the user may not read
// by itself or that has row security of its own.
func (n *snapshot) Measure(ctx context.Context, tables []*change.Table, most int64) (_ []source.Extent, err error) {
	conn, err := n.session(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { n.giveBack(conn, err == nil) }()
	files := make(map[uint32][]file, len(tables)) // a table may be copied into several targets
	var ids []string
	for _, t := range tables {
		if _, known := files[t.ID]; !known {
			files[t.ID] = nil
			ids = append(ids, strconv.FormatUint(uint64(t.ID), 10))
		}
	}
	result, err := conn.Exec(ctx, fmt.Sprintf(measureSQL, strings.Join(ids, ","), treeOf("r.oid"))).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("measure tables: %w", err)
	}
	for _, row := range result[len(result)-1].Rows {
		f := file{leaf: change.Name{Schema: string(row[1]), Table: string(row[2])}, readable: string(row[5]) == "t", tree: string(row[6])}
		f.blocks, f.bytes = number(row[3]), number(row[4])
		id := uint32(number(row[0]))
		files[id] = append(files[id], f)
	}
	out := make([]source.Extent, len(tables))
	for i, t := range tables {
		for _, f := range files[t.ID] {
			out[i].Bytes += f.bytes
		}
		if out[i].Bytes > most {
			out[i].Ranges = cut(files[t.ID], most)
		}
	}
	return out, nil
}

// blockRange is what a source.Range of ours is: blocks of one file.
type blockRange struct {
	leaf     change.Name // the table that holds the rows: the table itself or one of its partitions
	from, to uint32      // blocks from <= n < to; to 0: to the end of the file
	tree     string      // the partitions as they were measured; "" for an ordinary table
}

// file is a table or partition on disk.
type file struct {
	leaf          change.Name
	blocks, bytes int64
	readable      bool
	tree          string
}

// cut makes ranges of about most bytes; nil if that gives fewer than two.
func cut(files []file, most int64) []source.Range {
	var out []source.Range
	for _, f := range files {
		if !f.readable {
			return nil
		}
		parts := max(1, min((f.bytes+most-1)/most, f.blocks))
		for p := range parts {
			r := &blockRange{leaf: f.leaf, from: uint32(f.blocks * p / parts), to: uint32(f.blocks * (p + 1) / parts), tree: f.tree}
			if p == parts-1 {
				r.to = 0
			}
			out = append(out, source.Range{Bytes: f.bytes / parts, At: r})
		}
	}
	if len(out) < 2 {
		return nil
	}
	return out
}

// bounds is the condition of a range; "" for a whole file.
func bounds(r *blockRange) string {
	var parts []string
	if r.from > 0 {
		parts = append(parts, fmt.Sprintf("ctid >= '(%d,0)'::tid", r.from))
	}
	if r.to > 0 {
		parts = append(parts, fmt.Sprintf("ctid < '(%d,0)'::tid", r.to))
	}
	return strings.Join(parts, " AND ")
}

// treeOf is the expression of a partitioned table's leaves, by which a change of
// them is noticed; ” for another table.
func treeOf(oid string) string {
	return "(SELECT coalesce(string_agg(x.relid::oid::text, ',' ORDER BY x.relid::oid), '') FROM pg_partition_tree(" + oid + "::oid::regclass) AS x WHERE x.isleaf AND x.level > 0)"
}

func number(text []byte) int64 {
	n, _ := strconv.ParseInt(string(text), 10, 64)
	return n
}

// measureSQL asks for the files of tables. The main file decides how many blocks
// there are; the size is that with what is stored out of line.
const measureSQL = `SELECT r.oid, n.nspname, l.relname, coalesce(pg_relation_size(l.oid) / current_setting('block_size')::bigint, 0), coalesce(pg_table_size(l.oid), 0),
  l.relkind = 'r' AND coalesce(a.amname = 'heap', false) AND (l.oid = r.oid OR has_table_privilege(l.oid, 'SELECT') AND NOT row_security_active(l.oid)),
  %[2]s
FROM unnest('{%[1]s}'::oid[]) AS t (oid)
JOIN pg_class AS r ON r.oid = t.oid
CROSS JOIN LATERAL (SELECT r.oid WHERE r.relkind <> 'p' UNION ALL SELECT x.relid FROM pg_partition_tree(CASE WHEN r.relkind = 'p' THEN r.oid END::regclass) AS x WHERE x.isleaf) AS f (oid)
JOIN pg_class AS l ON l.oid = f.oid
JOIN pg_namespace AS n ON n.oid = l.relnamespace
LEFT JOIN pg_am AS a ON a.oid = l.relam
ORDER BY r.oid, l.oid`
