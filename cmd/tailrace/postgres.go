package main

import (
	"tailrace/sink"
	sinkpg "tailrace/sink/postgres"
)

func openPostgres(e *environment) (sink.Writer, error) {
	return sinkpg.New(sinkpg.Config{DSN: e.Destination.DSN.Reveal(), Pipeline: e.Pipeline, Logger: e.log})
}
