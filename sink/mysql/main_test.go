package mysql

import (
	"os"
	"testing"

	"tailrace/internal/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
