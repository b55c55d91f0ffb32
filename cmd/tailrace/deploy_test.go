package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"tailrace/internal/config"
)

const deploy = "../../examples/deploy/"

func documents(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(deploy + file)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m map[string]any
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, m)
	}
}

// The examples for machines that run tailrace hold configurations that it takes, and
// give it the time that it needs to stop.
func TestDeploymentExamples(t *testing.T) {
	t.Setenv("SOURCE_DSN", "postgres://a@b/c")
	t.Setenv("DESTINATION_DSN", "postgres://a@b/d")
	text, err := os.ReadFile(deploy + "tailrace.yaml")
	if err != nil {
		t.Fatal(err)
	}
	configMap, ok := documents(t, "kubernetes.yaml")[0]["data"].(map[string]any)
	if !ok {
		t.Fatal("kubernetes.yaml does not begin with a ConfigMap")
	}
	for name, text := range map[string]string{"tailrace.yaml": string(text), "kubernetes.yaml": configMap["tailrace.yaml"].(string)} {
		c, err := config.Parse(name, []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Listen == "" || c.DrainMax != 10*time.Second {
			t.Errorf("%s: listens on %q, drains for %s", name, c.Listen, c.DrainMax)
		}
	}
	service := documents(t, "compose.yaml")[0]["services"].(map[string]any)["tailrace"].(map[string]any)
	if service["stop_grace_period"] != "30s" || service["hostname"] == nil {
		t.Errorf("compose.yaml: %v", service)
	}
	unit, err := os.ReadFile(deploy + "tailrace.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tailrace run -c ", "TimeoutStopSec=30\n", "RestartPreventExitStatus=2 3\n"} {
		if !strings.Contains(string(unit), want) {
			t.Errorf("tailrace.service has no %q", want)
		}
	}
	image, err := os.ReadFile(deploy + "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(image), "RUN make build\n") || !strings.Contains(string(makefile), "BIN := bin/tailrace\n") || !strings.Contains(string(image), "/src/bin/tailrace ") {
		t.Error("the Dockerfile does not take what make build makes")
	}
}
