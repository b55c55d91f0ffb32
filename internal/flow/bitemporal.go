package flow

import "strings"

// Bitemporal is the SCDType of a target that keeps every version that was ever believed,
// and while it was (rules R76-R84).
const Bitemporal = 3

// reservedSystem are column names that a bitemporal target may not take from its source
// either (rule R99).
var reservedSystem = []string{"__SYSTEM_START_AT", "__SYSTEM_END_AT"}

// reserved are the column names that the flow's target may not take from its source. One
// of type 1 has no columns of ours, and takes those of another's history as they are.
func (s *Spec) reserved() []string {
	switch s.SCDType {
	case 1:
		return nil
	case Bitemporal:
		return append(append([]string(nil), Reserved...), reservedSystem...)
	}
	return Reserved
}

// validateBitemporal checks what goes with a bitemporal target alone (rule R76).
func (s *Spec) validateBitemporal(bad func(string, ...any) error) error {
	q := &s.Sequenced
	switch {
	case s.SCDType != Bitemporal && len(q.SystemSequenceBy) > 0:
		return bad("system_sequence_by goes with stored_as_scd_type: bitemporal only")
	case s.SCDType != Bitemporal:
		return nil
	case !q.Is():
		return bad("stored_as_scd_type: bitemporal needs sequence_by: when an event holds, and system_sequence_by: when it became known")
	case len(q.SystemSequenceBy) == 0:
		return bad("stored_as_scd_type: bitemporal needs system_sequence_by: the column that says when an event became known")
	case len(q.SystemSequenceBy) > 1 || len(q.SequenceBy) > 1:
		return bad("stored_as_scd_type: bitemporal takes one column in sequence_by and one in system_sequence_by, not %s; both starts are part of the target's key", strings.Join(append(append([]string(nil), q.SequenceBy...), q.SystemSequenceBy...), ", "))
	case q.TruncateWhen != "":
		return bad("apply_as_truncates goes with stored_as_scd_type: 1 only: a history is not truncated")
	case q.ColumnsToUpdate != "":
		return bad("columns_to_update does not go with stored_as_scd_type: bitemporal")
	case len(s.TrackHistory)+len(s.TrackHistoryExcept) > 0:
		return bad("track_history_* belongs to stored_as_scd_type: 2; a bitemporal target tracks every column")
	case q.QuarantineBeyond:
		return bad("late_beyond_retention: quarantine has no meaning with stored_as_scd_type: bitemporal: no delete is forgotten")
	}
	return nil
}
