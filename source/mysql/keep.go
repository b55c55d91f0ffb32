package mysql

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// The server keeps its log for everybody, as long as its settings say, and nothing of
// ours can hold it. So what is kept for rewind points is looked at, and CheckKeep compares
// the settings with the window.
var _ source.Keeper = (*Source)(nil)

// Keep implements source.Keeper: it is remembered what Kept is to judge.
func (s *Source) Keep(_ context.Context, p change.Position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = p
	return nil
}

// Unkeep implements source.Keeper.
func (s *Source) Unkeep(ctx context.Context) error { return s.Keep(ctx, change.Position{}) }

// Kept implements source.Keeper. A point that was made on another server (its epoch is
// another) is not judged: Locate and State find its place here, if there is one.
func (s *Source) Kept(ctx context.Context) (source.Kept, error) {
	k := source.Kept{Exists: true}
	files, err := s.logFiles(ctx)
	if err != nil {
		return source.Kept{}, err
	}
	if k.From, err = s.positionOf(files[0].name, fileBegin); err != nil {
		return source.Kept{}, err
	}
	s.mu.Lock()
	p := s.kept
	s.mu.Unlock()
	here := p.Epoch == k.From.Epoch
	for _, f := range files {
		_, n, err := numberOf(f.name)
		if err != nil {
			return source.Kept{}, err
		}
		if !here || n >= p.File {
			k.Bytes += f.size
		}
	}
	if !p.IsZero() && here && p.File < k.From.File {
		k.Lost = true
		k.Why = fmt.Sprintf("the log files from number %d to %d were purged", p.File, k.From.File-1)
	}
	return k, nil
}

// Return implements source.Keeper: there is nothing to move, but the place must be there.
func (s *Source) Return(ctx context.Context, p change.Position) error {
	files, err := s.logFiles(ctx)
	if err != nil {
		return err
	}
	oldest, err := s.positionOf(files[0].name, fileBegin)
	if err != nil {
		return err
	}
	if p.Epoch == oldest.Epoch && p.File < oldest.File {
		return fault.Refuse("rewind to a later point; and keep the log for longer on the source: `tailrace check` says how",
			"go back to %s in the source's log: the log files from number %d to %d were purged; the oldest file is %s", p, p.File, oldest.File-1, files[0].name)
	}
	return nil
}

// keepMargin is what the log is to be kept for beyond the window, so that a pipeline that
// stands still for a while does not lose its oldest points.
const keepMargin = 24 * time.Hour

// CheckKeep implements source.Keeper.
func (s *Source) CheckKeep(ctx context.Context, window time.Duration) ([]source.Finding, error) {
	f, err := s.readServer(ctx)
	if err != nil {
		return nil, fmt.Errorf("check what rewind needs of the source: %w", err)
	}
	v, err := variables(ctx, s.db, "binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge", "max_binlog_total_size", "binlog_space_limit")
	if err != nil {
		return nil, s.explain(err, "read how long the log is kept")
	}
	c := &checker{source: s}
	if kept := expiry(v); kept > 0 && kept < window {
		c.warns(f.expiryRemedy(v, window+keepMargin),
			"the source keeps its log for %s, and rewind points are kept for %s (rewind.keep): what is replayed from the older ones would be gone", kept, window)
	}
	for _, name := range []string{"max_binlog_total_size", "binlog_space_limit"} { // MariaDB from 11.4 on, which has the second as another name of it; Percona Server
		var most int64
		if _, err := fmt.Sscan(v[name], &most); err != nil || most == 0 {
			continue
		}
		k, err := s.Kept(ctx)
		if err != nil {
			return nil, fmt.Errorf("check what rewind needs of the source: %w", err)
		}
		remedy := "see that it is more log than the source writes in that time, or: " + f.set(name, 0)
		if name == "binlog_space_limit" {
			remedy = "see that it is more log than the source writes in that time, or set binlog_space_limit = 0 in the server's configuration and restart it"
		}
		c.warns(remedy, "the source removes its oldest log files beyond %d MiB, however young (%s); they hold %d MiB now. Rewind points are kept for %s (rewind.keep): what is replayed from the older ones could be gone",
			most>>20, name, k.Bytes>>20, window)
		break
	}
	return c.findings, nil
}

// expiry is how long the server keeps a log file after its end; 0: for ever.
func expiry(v map[string]string) time.Duration {
	if v["binlog_expire_logs_auto_purge"] == "OFF" {
		return 0
	}
	var seconds, days float64
	if _, err := fmt.Sscan(v["binlog_expire_logs_seconds"], &seconds); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if _, err := fmt.Sscan(v["expire_logs_days"], &days); err == nil { // MariaDB has fractions
		return time.Duration(days * float64(24*time.Hour))
	}
	return 0
}

// expiryRemedy is the statement that makes the server keep its log for so long.
func (f *server) expiryRemedy(v map[string]string, long time.Duration) string {
	if _, there := v["binlog_expire_logs_seconds"]; !there { // MariaDB before 10.6
		const day = 24 * time.Hour
		return f.set("expire_logs_days", int64((long+day-1)/day))
	}
	return f.set("binlog_expire_logs_seconds", int64((long+time.Second-1)/time.Second))
}

// set is the statement that sets a variable, also for later starts of the server.
func (f *server) set(name string, value int64) string {
	if f.mariaDB { // it has no PERSIST
		return fmt.Sprintf("SET GLOBAL %s = %d (and in the server's configuration)", name, value)
	}
	return fmt.Sprintf("SET PERSIST %s = %d", name, value)
}
