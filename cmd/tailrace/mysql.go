package main

import (
	"tailrace/sink"
	sinkmysql "tailrace/sink/mysql"
)

func openMySQL(e *environment) (sink.Writer, error) {
	return sinkmysql.New(sinkmysql.Config{DSN: e.Destination.DSN.Reveal(), Pipeline: e.Pipeline, Schema: e.Destination.Schema, Logger: e.log})
}
