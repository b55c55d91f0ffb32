package config_test

import (
	"strings"
	"testing"
	"time"

	"tailrace/internal/config"
	"tailrace/internal/fault"
)

const rewindable = "pipeline: p\nsource: {dsn: x}\ndestination: {dsn: x}\nflows: [{source: a, keys: [k], sequence_by: n}]\n"

// One of every and keep switches rewind points on, and the other has a default.
func TestRewindIsOffUnlessAsked(t *testing.T) {
	for text, want := range map[string]config.Rewind{
		"":                                 {MaxWAL: 20 << 30, MaxUndo: 20 << 30},
		"rewind: {max_wal: 1GiB}":          {MaxWAL: 1 << 30, MaxUndo: 20 << 30},
		"rewind: {keep: 48h}":              {Every: time.Hour, Keep: 48 * time.Hour, MaxWAL: 20 << 30, MaxUndo: 20 << 30},
		"rewind: {keep: 10m, max_undo: 0}": {Every: 10 * time.Minute, Keep: 10 * time.Minute, MaxWAL: 20 << 30},
		"rewind: {every: 5m}":              {Every: 5 * time.Minute, Keep: 24 * time.Hour, MaxWAL: 20 << 30, MaxUndo: 20 << 30},
		"rewind: {every: 48h}":             {Every: 48 * time.Hour, Keep: 48 * time.Hour, MaxWAL: 20 << 30, MaxUndo: 20 << 30},
		"rewind: {every: 1m, keep: 2m}":    {Every: time.Minute, Keep: 2 * time.Minute, MaxWAL: 20 << 30, MaxUndo: 20 << 30},
	} {
		c, err := config.Parse("f.yaml", []byte(rewindable+text+"\n"))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if c.Rewind != want {
			t.Errorf("%q: %+v, want %+v", text, c.Rewind, want)
		}
		if got, least := c.Specs()[0].Sequenced.TombstoneRetention, max(48*time.Hour, want.Keep); got != least {
			t.Errorf("%q: deletes are remembered for %s, want %s", text, got, least)
		}
	}
	for text, want := range map[string]string{
		rewindable + "rewind: {every: 10s}":           "rewind.every is at least 1m0s",
		rewindable + "rewind: {keep: 30s}":            "rewind.every is at least 1m0s",
		rewindable + "rewind: {every: 2h, keep: 1h}":  "is longer than rewind.keep",
		rewindable + "rewind: {every: 1m, keep: 24h}": "more than 1000 times",
		rewindable + "rewind: {keep: -1h}":            "positive durations",
		strings.Replace(rewindable, "sequence_by: n", "sequence_by: n, tombstone_retention: 5h", 1) + "rewind: {keep: 6h}": "tombstone_retention (5h0m0s) is shorter than rewind.keep (6h0m0s)",
	} {
		if _, err := config.Parse("f.yaml", []byte(text+"\n")); err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
