package config

import (
	"net/url"
	"time"

	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

// Trigger says when a pipeline runs that does not follow its source all the time.
type Trigger struct {
	Every       time.Duration `yaml:"every"`
	Cron        string        `yaml:"cron"`
	TimeZone    string        `yaml:"time_zone"`
	FileArrival string        `yaml:"file_arrival"`
}

// Spec returns the trigger's specification; the zero one: there is none.
func (t Trigger) Spec() flow.Trigger { return flow.Trigger(t) }

// OnFailure is who is told that a run, or the daemon, has failed.
type OnFailure struct {
	Webhook Secret   `yaml:"webhook"` // its URL often is the right to call it
	Command []string `yaml:"command"` // a program and its arguments; no shell
}

// IsZero reports whether nobody is told.
func (o *OnFailure) IsZero() bool { return o.Webhook == "" && len(o.Command) == 0 }

func (c *Config) validateTrigger() error {
	if err := c.Trigger.Spec().Validate(); err != nil {
		return err
	}
	if c.OnFailure.Webhook != "" {
		u, err := url.Parse(c.OnFailure.Webhook.Reveal())
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fault.Badly("on_failure.webhook is a URL that begins with https:// or http:// (it is not printed: it may hold a secret)")
		}
	}
	if len(c.OnFailure.Command) > 0 && c.OnFailure.Command[0] == "" {
		return fault.Badly("on_failure.command is a program and its arguments, such as [notify, --title, \"tailrace\"]; the program is empty")
	}
	return nil
}
