package config_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

func TestTriggers(t *testing.T) {
	t.Setenv("HOOK", "https://hooks.example/s3cret")
	for _, c := range []struct {
		text    string
		want    flow.Trigger
		webhook string
		command []string
	}{
		{"", flow.Trigger{}, "", nil},
		{"trigger: {}", flow.Trigger{}, "", nil},
		{"trigger: {every: 5m}", flow.Trigger{Every: 5 * time.Minute}, "", nil},
		{"trigger: {cron: \"0 */2 * * *\", time_zone: Europe/Berlin}", flow.Trigger{Cron: "0 */2 * * *", TimeZone: "Europe/Berlin"}, "", nil},
		{"trigger: {file_arrival: Landing/}", flow.Trigger{FileArrival: "Landing/"}, "", nil},
		{"on_failure: {webhook: \"${HOOK}\", command: [notify, --title, \"A b\"]}", flow.Trigger{}, "https://hooks.example/s3cret", []string{"notify", "--title", "A b"}},
	} {
		got, err := config.Parse("f.yaml", []byte(small+c.text))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got.Trigger.Spec() != c.want || got.OnFailure.Webhook.Reveal() != c.webhook || !reflect.DeepEqual(got.OnFailure.Command, c.command) {
			t.Errorf("%s: %+v %q", c.text, got.Trigger, got.OnFailure.Command)
		}
	}
	t.Setenv("TAILRACE_TRIGGER_EVERY", "7s")
	if c, err := config.Parse("f.yaml", []byte(small)); err != nil || c.Trigger.Every != 7*time.Second {
		t.Errorf("a variable: %+v %v", c, err)
	}
}

func TestWrongTriggersAndNotices(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"trigger: 5m", "f.yaml:4: trigger must hold keys"},
		{"trigger: {evry: 5m}", "unknown key `trigger.evry`; did you mean `every`?"},
		{"trigger: {every: often}", "trigger.every has a value of the wrong kind"},
		{"trigger: {every: 5m, cron: \"0 0 * * *\"}", "f.yaml: trigger has one of every, cron and file_arrival"},
		{"trigger: {every: 10ms}", "trigger.every is at least 1s; a pipeline that is to be closer to its source follows it"},
		{"trigger: {time_zone: UTC}", "trigger.time_zone belongs to trigger.cron"},
		{"trigger: {cron: \"0 0 * * *\", time_zone: Mars/Base}", "trigger.time_zone \"Mars/Base\" is not known; it is an IANA name such as Europe/Berlin"},
		{"trigger: {cron: \"* * *\"}", "it has five fields"},
		{"on_failure: {webhook: \"ftp://u:hush@h/\"}", "on_failure.webhook is a URL that begins with https:// or http://"},
		{"on_failure: {webhook: \"hush\"}", "on_failure.webhook is a URL"},
		{"on_failure: {webhook: \"https://%zz/hush\"}", "on_failure.webhook is a URL"},
		{"on_failure: {command: notify}", "on_failure.command must be a list"},
		{"on_failure: {command: [\"\"]}", "on_failure.command is a program and its arguments"},
	} {
		_, err := config.Parse("f.yaml", []byte(small+c.text))
		if err == nil || fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
