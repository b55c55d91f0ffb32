# tailrace. `make` prints this help.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := bin/tailrace
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: help demo build static test test-mysql race lint bench fuzz soak clean tools

help: ## print this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS=$$'\t' read -r t d; do printf '  make %-11s %s\n' "$$t" "$$d"; done

# What building needs: Go, and a C compiler for the embedded DuckDB.
tools:
	@command -v go >/dev/null || { echo "tailrace needs Go 1.26 or newer on PATH: https://go.dev/dl/"; exit 2; }
	@command -v cc >/dev/null || command -v gcc >/dev/null || \
	  { if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc g++ libc6-dev >/dev/null; \
	    else echo "the embedded DuckDB needs a C compiler: install gcc and g++, or build without it: make static"; exit 2; fi; }

build: tools ## build bin/tailrace (with the embedded DuckDB)
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/tailrace

static: ## build bin/tailrace without DuckDB: pure Go, static
	CGO_ENABLED=0 go build -tags noduckdb -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/tailrace

demo: build ## a throw-away source, copy, follow, a kill, a restart, verify; under a minute
	$(BIN) demo

test: tools ## every test, on real servers; prints the count of skipped ones
	@./internal/dbtest/run-tests.sh

# What the whole program shows of MariaDB it shows of this server then, as the source and as
# the destination. Few at once: MySQL is locked for a moment where a copy begins, and everybody waits.
ON_MYSQL := MySQL|ARentalShop|Crashes|Scenarios|Feed|Sequence|Quarantine|Retried|Counts|BadEvents|Explain|Verify

test-mysql: tools ## the tests of MySQL on another server: make test-mysql MYSQLD=/usr/sbin/mysqld
	@test -n "$(MYSQLD)" || { echo "name the server's program: make test-mysql MYSQLD=/usr/sbin/mysqld (a MySQL 8 or 9, or another MariaDB)"; exit 2; }
	TAILRACE_TEST_MYSQL=$(MYSQLD) go test -count=1 ./source/mysql ./sink/mysql
	TAILRACE_TEST_MYSQL=$(MYSQLD) TAILRACE_TEST_KINDS=mysql go test -count=1 -parallel 2 -timeout 60m ./cmd/tailrace -run '$(ON_MYSQL)'

race: tools ## the pure rooms and the corridor under the race detector
	go test -race ./internal/... ./scd/... ./checkpoint/... ./hydrate/... ./source/...

lint: ## gofmt, vet, golangci-lint if it is installed
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run ./...; else echo "golangci-lint is not installed: only gofmt and vet ran"; fi

bench: build ## backlogs through PostgreSQL's own subscription and through tailrace, in one run
	go run ./bench/native -tailrace $(BIN)

FUZZTIME ?= 30s
fuzz: ## fuzz every parser for FUZZTIME (default 30s) each
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r f; do \
	  for name in $$(grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | sed 's/func //'); do \
	    echo "== $$(dirname $$f) $$name"; go test $$(dirname $$f) -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) || exit 1; done; done

soak: build ## what takes longer: hundreds of kills, 20 minutes of outages, 2,000 random histories each, 100 random rewinds, 5M rows, 4 GB of binlog
	TAILRACE_SOAK=1 go test ./cmd/tailrace -run 'Crash|Huge|Outages|ShuffledFeeds|RandomRewinds' -count=1 -timeout 150m -v
	go test -tags soak ./source/mysql -run FourGigabytes -count=1 -timeout 60m -v

clean: ## remove what was built
	rm -rf bin
