package flow

import (
	"strings"
	"time"
	_ "time/tzdata" // a container may have no database of time zones

	"github.com/robfig/cron/v3"

	"tailrace/internal/fault"
)

// Trigger says when a pipeline runs that does not follow its source all the time. One of
// Every, Cron and FileArrival is set; none: it follows.
type Trigger struct {
	Every       time.Duration // from the beginning of one run to that of the next, if it has ended
	Cron        string        // five fields
	TimeZone    string        // of Cron, an IANA name; empty: the machine's, or the one in Cron (CRON_TZ=)
	FileArrival string        // a folder, a file or a glob: whenever a file arrives there
}

// IsZero reports whether there is no trigger.
func (t Trigger) IsZero() bool { return t == Trigger{} }

// Validate checks everything that needs no file system.
func (t Trigger) Validate() error {
	bad := fault.Badly
	ways := 0
	for _, set := range []bool{t.Every != 0, t.Cron != "", t.FileArrival != ""} {
		if set {
			ways++
		}
	}
	switch {
	case t.IsZero():
		return nil
	case t.TimeZone != "" && t.Cron == "":
		return bad("trigger.time_zone belongs to trigger.cron")
	case ways != 1:
		return bad("trigger has one of every, cron and file_arrival")
	case t.Every != 0 && t.Every < everyLeast:
		return bad("trigger.every is at least %s; a pipeline that is to be closer to its source follows it: leave trigger out", everyLeast)
	case t.Cron == "":
		return nil
	case t.TimeZone != "" && strings.Contains(t.Cron, "TZ="):
		return bad("the time zone of trigger.cron is written once: leave CRON_TZ= out of it, or time_zone")
	}
	if t.TimeZone != "" {
		if _, err := time.LoadLocation(t.TimeZone); err != nil || t.TimeZone == "Local" {
			return bad("trigger.time_zone %q is not known; it is an IANA name such as Europe/Berlin", t.TimeZone)
		}
	}
	schedule, err := cron.ParseStandard(t.cron())
	if err != nil {
		return bad("trigger.cron %q: %v; it has five fields: minute, hour, day of the month, month, day of the week", t.Cron, err)
	}
	if schedule.Next(time.Now()).IsZero() {
		return bad("trigger.cron %q never comes", t.Cron)
	}
	return nil
}

func (t Trigger) cron() string {
	if t.TimeZone != "" {
		return "CRON_TZ=" + t.TimeZone + " " + t.Cron
	}
	return t.Cron
}

// Next is the first moment behind after; the zero time: the clock has none.
func (t Trigger) Next(after time.Time) time.Time {
	switch {
	case t.Every != 0:
		return after.Add(t.Every)
	case t.Cron != "":
		return nextByCron(t.cron(), after)
	}
	return time.Time{}
}

// nextByCron is the first moment of a cron expression behind after. Where clocks are put
// forward, moments that do not exist come together as the first one that does; where they
// are put back, a moment that exists twice comes twice.
func nextByCron(expression string, after time.Time) time.Time {
	schedule, err := cron.ParseStandard(expression)
	if err != nil {
		return time.Time{}
	}
	next := schedule.Next(after)
	fields, ok := schedule.(*cron.SpecSchedule)
	if !ok {
		return next
	}
	zone := fields.Location
	if zone == time.Local {
		zone = after.Location()
	}
	// The same expression on a clock that is never put forward.
	wall := *fields
	wall.Location = time.UTC
	local := after.In(zone)
	w := wall.Next(time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), local.Second(), local.Nanosecond(), time.UTC))
	at := time.Date(w.Year(), w.Month(), w.Day(), w.Hour(), w.Minute(), w.Second(), 0, zone)
	if w.IsZero() || at.Hour() == w.Hour() && at.Minute() == w.Minute() {
		return next
	}
	begins, ends := at.ZoneBounds() // Go takes the offset of before the gap, or that of after it
	gap := begins
	if at.Hour()*60+at.Minute() < w.Hour()*60+w.Minute() {
		gap = ends
	}
	if gap.After(after) && (next.IsZero() || gap.Before(next)) {
		return gap.In(next.Location())
	}
	return next
}
