package dbtest

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"tailrace/internal/dbtest/pgserver"
)

// imageVersion is the major version of the image used where there are neither
// programs nor a package to install.
const imageVersion = 17

// containerImage reports whether a container engine runs here.
func containerImage(ctx context.Context) (pgserver.Binaries, bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := exec.CommandContext(ctx, "docker", "info").Run(); err != nil {
		return pgserver.Binaries{}, false
	}
	return pgserver.Binaries{Version: imageVersion, Full: strconv.Itoa(imageVersion) + " (container)"}, true
}

// startContainer starts the server as a container; testcontainers' own reaper is
// the watchdog there.
func startContainer(ctx context.Context, b pgserver.Binaries, settings map[string]string) (*pgserver.Server, error) {
	args := []string{"postgres"}
	for k, v := range pgserver.DefaultSettings() {
		if _, ok := settings[k]; !ok {
			args = append(args, "-c", k+"="+v)
		}
	}
	for k, v := range settings {
		args = append(args, "-c", k+"="+v)
	}
	c, err := testcontainers.Run(ctx, fmt.Sprintf("postgres:%d", b.Version),
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust", "POSTGRES_INITDB_ARGS": "-E UTF8 --locale=C.UTF-8"}),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithCmd(args...),
		// The image's entry point starts a first server to initialise the data, so
		// the second readiness message counts.
		testcontainers.WithWaitStrategy(wait.ForAll(
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
			wait.ForListeningPort("5432/tcp"))))
	if err != nil {
		return nil, err
	}
	e := &engine{container: c}
	s, err := pgserver.Adopt(ctx, b, e)
	if err != nil {
		e.Remove(ctx)
	}
	return s, err
}

// engine runs a server in a container.
type engine struct {
	container *testcontainers.DockerContainer
}

func (e *engine) Address(ctx context.Context) (string, int, error) {
	host, err := e.container.Host(ctx)
	if err != nil {
		return "", 0, err
	}
	port, err := e.container.MappedPort(ctx, "5432/tcp")
	if err != nil {
		return "", 0, err
	}
	return host, int(port.Num()), nil
}

func (e *engine) Start(ctx context.Context) error { return e.container.Start(ctx) }

func (e *engine) Signal(ctx context.Context, signal string) error {
	return exec.CommandContext(ctx, "docker", "kill", "--signal", signal, e.container.GetContainerID()).Run()
}

func (e *engine) Wait(ctx context.Context) error {
	return exec.CommandContext(ctx, "docker", "wait", e.container.GetContainerID()).Run()
}

func (e *engine) Remove(ctx context.Context) error { return e.container.Terminate(ctx) }
