package mysql

import (
	"context"
	"time"

	"tailrace/internal/change"
	"tailrace/sink"
)

var _ sink.Taker = (*Writer)(nil)

const takenSinceSQL = "SELECT f.relation_schema, f.relation_table, f.path, f.size, f.modified, f.checksum, f.`rows` FROM _tailrace.files AS f WHERE f.pipeline = ? AND EXISTS (SELECT 1 FROM _tailrace.undo_files AS u WHERE u.pipeline = f.pipeline AND u.relation_schema = f.relation_schema AND u.relation_table = f.relation_table AND u.path_hash = f.path_hash AND u.number >= ?)"

// TakenSince implements sink.Taker.
func (w *Writer) TakenSince(ctx context.Context, to int64) (files []change.File, err error) {
	err = w.onSide(ctx, "read which files were taken", func(s *session) error {
		rows, err := s.query(ctx, bind(takenSinceSQL, w.cfg.Pipeline, to))
		if missingBook(err) {
			return nil
		}
		for _, r := range rows {
			files = append(files, change.File{
				Relation: change.Name{Schema: str(r[0]), Table: str(r[1])}, Path: str(r[2]), Size: num(r[3]),
				Modified: time.Unix(0, num(r[4])).UTC(), Checksum: str(r[5]), Rows: num(r[6]),
			})
		}
		return err
	})
	return files, err
}
