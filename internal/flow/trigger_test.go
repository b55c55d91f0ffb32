package flow_test

import (
	"strings"
	"testing"
	"time"

	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

func TestMomentsOfATrigger(t *testing.T) {
	berlin := func(cron string) flow.Trigger { return flow.Trigger{Cron: cron, TimeZone: "Europe/Berlin"} }
	for _, c := range []struct {
		name    string
		trigger flow.Trigger
		from    string
		want    []string // RFC 3339
	}{
		{"every", flow.Trigger{Every: 90 * time.Second}, "2026-01-01T00:00:00Z", []string{"2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"}},
		{"files", flow.Trigger{FileArrival: "landing/"}, "2026-01-01T00:00:00Z", []string{""}},
		{"every two hours", flow.Trigger{Cron: "0 */2 * * *", TimeZone: "UTC"}, "2026-01-01T00:00:00Z", []string{"2026-01-01T02:00:00Z", "2026-01-01T04:00:00Z"}},
		{"another zone", berlin("0 6 * * *"), "2026-01-01T00:00:00Z", []string{"2026-01-01T06:00:00+01:00"}},
		{"the zone in the expression", flow.Trigger{Cron: "CRON_TZ=Asia/Kolkata 0 6 * * *"}, "2026-01-01T00:00:00Z", []string{"2026-01-01T06:00:00+05:30", "2026-01-02T06:00:00+05:30"}},
		// 29 March 2026, 02:00 to 03:00 does not exist in Berlin.
		{"a moment that does not exist", berlin("30 2 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00"}},
		{"several of them", berlin("*/20 2 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"every 20 minutes over the gap", berlin("*/20 * * * *"), "2026-03-29T01:30:00+01:00", []string{"2026-03-29T01:40:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:20:00+02:00"}},
		{"beside the gap", berlin("30 3 * * *"), "2026-03-28T12:00:00Z", []string{"2026-03-29T03:30:00+02:00"}},
		{"a weekday's moment that does not exist", berlin("15 2 * * 0"), "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-04-05T02:15:00+02:00"}},
		{"half an hour is skipped", flow.Trigger{Cron: "10 2 * * *", TimeZone: "Australia/Lord_Howe"}, "2026-10-03T12:00:00Z", []string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:10:00+11:00"}},
		{"west of Greenwich", flow.Trigger{Cron: "30 2 * * *", TimeZone: "America/New_York"}, "2026-03-07T12:00:00Z", []string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"}},
		// 25 October 2026, 02:00 to 03:00 is there twice.
		{"a moment that exists twice", berlin("30 2 * * *"), "2026-10-24T12:00:00Z", []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"}},
		{"every 20 minutes over the hour that is there twice", berlin("*/20 * * * *"), "2026-10-25T02:30:00+02:00", []string{"2026-10-25T02:40:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:20:00+01:00"}},
		{"leap day", flow.Trigger{Cron: "0 0 29 2 *", TimeZone: "UTC"}, "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z"}},
	} {
		if err := c.trigger.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		at, err := time.Parse(time.RFC3339, c.from)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			next := c.trigger.Next(at)
			if want == "" {
				if !next.IsZero() {
					t.Errorf("%s: %s, want none", c.name, next)
				}
				break
			}
			w, err := time.Parse(time.RFC3339, want)
			if err != nil {
				t.Fatal(err)
			}
			if !next.Equal(w) {
				t.Errorf("%s: behind %s comes %s, want %s", c.name, at.Format(time.RFC3339), next.Format(time.RFC3339), want)
			}
			at = w
		}
	}
}

func TestWrongTriggersAreRefused(t *testing.T) {
	for _, c := range []struct {
		trigger flow.Trigger
		want    string
	}{
		{flow.Trigger{Every: time.Minute, Cron: "0 0 * * *"}, "trigger has one of every, cron and file_arrival"},
		{flow.Trigger{Every: time.Minute, FileArrival: "a"}, "trigger has one of every, cron and file_arrival"},
		{flow.Trigger{Every: 10 * time.Millisecond}, "trigger.every is at least 1s"},
		{flow.Trigger{Every: -time.Minute}, "trigger.every is at least 1s"},
		{flow.Trigger{TimeZone: "UTC"}, "trigger.time_zone belongs to trigger.cron"},
		{flow.Trigger{Every: time.Minute, TimeZone: "UTC"}, "trigger.time_zone belongs to trigger.cron"},
		{flow.Trigger{Cron: "0 0 * *"}, "it has five fields: minute, hour"},
		{flow.Trigger{Cron: "61 0 * * *"}, "trigger.cron \"61 0 * * *\""},
		{flow.Trigger{Cron: "0 0 30 2 *"}, "never comes"},
		{flow.Trigger{Cron: "0 0 * * *", TimeZone: "Europe/Atlantis"}, "trigger.time_zone \"Europe/Atlantis\" is not known"},
		{flow.Trigger{Cron: "0 0 * * *", TimeZone: "Local"}, "is not known"},
		{flow.Trigger{Cron: "CRON_TZ=UTC 0 0 * * *", TimeZone: "UTC"}, "written once"},
	} {
		err := c.trigger.Validate()
		if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.trigger, err, c.want)
		}
	}
}
