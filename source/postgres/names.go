package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
)

// names are the objects of a pipeline on the server.
type names struct {
	slot     string
	keep     string // the keep slot: ours, whoever named the other one
	ownSlot  bool   // the slot's name derives from the pipeline: ours to make and drop
	main     string
	appendix string // the publication of append-only tables; empty with a named publication
	ownPubs  bool
}

// nameLimit is PostgreSQL's limit for names of slots and objects, in bytes.
const nameLimit = 63

const appendSuffix = "_append"

// keepSuffix ends the name of a keep slot, and no name that derive gives.
const keepSuffix = "_keep"

// temporaryPrefix begins the names of the slots of snapshots; the rest is random.
const temporaryPrefix = "tailrace_tmp_"

func nameAll(cfg Config) names {
	base := derive(cfg.Pipeline, nameLimit-len(appendSuffix))
	n := names{slot: base, ownSlot: true, main: base, appendix: base + appendSuffix, ownPubs: true}
	if cfg.Slot != "" {
		n.slot, n.ownSlot = cfg.Slot, false
	}
	n.keep = keepName(n.slot)
	if cfg.Publication != "" {
		n.main, n.appendix, n.ownPubs = cfg.Publication, "", false
	}
	return n
}

// keepName names the keep slot of a live slot.
func keepName(slot string) string {
	if len(slot)+len(keepSuffix) <= nameLimit {
		return slot + keepSuffix
	}
	hash := hashSuffix(slot)
	return slot[:nameLimit-len(hash)-len(keepSuffix)] + hash + keepSuffix
}

// publications lists those that are asked for when following.
func (n names) publications() []string {
	if n.appendix == "" {
		return []string{n.main}
	}
	return []string{n.main, n.appendix}
}

// derive makes a name that is valid for a slot (lower-case letters, digits and
// underscores), at most limit bytes long, and always the same for a pipeline.
// Where that loses anything of the pipeline's name, or would be the keep slot's name
// of another pipeline, a hash of it keeps two pipelines apart.
func derive(pipeline string, limit int) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, pipeline)
	name := "tailrace_" + clean
	if clean == pipeline && len(name) <= limit && !strings.HasSuffix(name, keepSuffix) {
		return name
	}
	suffix := hashSuffix(pipeline)
	return name[:min(len(name), limit-len(suffix))] + suffix
}

func hashSuffix(of string) string {
	sum := sha256.Sum256([]byte(of))
	return "_" + hex.EncodeToString(sum[:4])
}

// ident quotes an identifier.
func ident(name string) string { return pgx.Identifier{name}.Sanitize() }

// qualified quotes schema and table.
func qualified(n change.Name) string { return pgx.Identifier{n.Schema, n.Table}.Sanitize() }

// literal quotes a string constant; standard_conforming_strings is pinned on, and
// a backslash is safe in the replication grammar too, which knows no escapes.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// publicationList is the value of publication_names: identifiers, comma-separated.
func publicationList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = ident(n)
	}
	return strings.Join(quoted, ",")
}
