package mysql

import (
	"strings"

	"tailrace/internal/fault"
	"tailrace/source"
)

var _ source.Namer = (*Source)(nil)

// Covers implements source.Namer. Of MariaDB a GTID stands for all before it in its domain.
func (s *Source) Covers(set, resume string) (bool, error) {
	return covers(set, resume)
}

func covers(set, resume string) (bool, error) {
	mariaDB := !strings.Contains(set, ":")
	named, err := parseGTIDs(mariaDB, set)
	if err != nil || len(named.parts) == 0 {
		return false, fault.Badly("%q are no GTIDs like 0-1-100 (MariaDB) or uuid:1-100 (MySQL)", set)
	}
	if resume == "" {
		return false, nil
	}
	r, err := parseResume(resume)
	if err != nil {
		return false, fault.Corrupted("read what is remembered beside a position: %v", err)
	}
	has, err := r.has(mariaDB)
	if err != nil || len(has.parts) == 0 {
		return false, fault.Badly("the source's log has no GTIDs of that form: name a position (as `tailrace status` shows it) or a time")
	}
	return named.contains(&has), nil
}
