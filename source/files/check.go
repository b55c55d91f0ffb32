package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"unicode/utf8"

	"tailrace/internal/fault"
	"tailrace/source"
)

// Check implements source.Source: it lists the files of the given relations and opens
// each for its first bytes.
func (s *Source) Check(ctx context.Context, tables []source.Followed) ([]source.Finding, error) {
	var findings []source.Finding
	for _, rel := range s.relations {
		for _, t := range tables {
			if t.Table.Name == rel.name() {
				more, err := s.checkRelation(ctx, rel)
				if err != nil {
					return nil, err
				}
				findings = append(findings, more...)
				break
			}
		}
	}
	return findings, nil
}

func (s *Source) checkRelation(ctx context.Context, rel *relation) ([]source.Finding, error) {
	var findings []source.Finding
	block := func(err error) {
		var f *fault.Error
		if errors.As(err, &f) && f.Kind == fault.Operator {
			findings = append(findings, source.Finding{Blocks: true, What: f.Op, Remedy: f.Remedy})
			return
		}
		findings = append(findings, source.Finding{Blocks: true, What: err.Error(), Remedy: "see that the file system is there and sound"})
	}
	files, err := rel.list(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		block(err)
		return findings, nil
	}
	if len(files) == 0 {
		findings = append(findings, source.Finding{
			What:   fmt.Sprintf("relation %s: %s matches no file below %s", rel.Name, rel.Path, s.root),
			Remedy: "nothing if files are still to come; else correct path",
		})
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !utf8.ValidString(f.path) {
			block(fault.Refuse("rename it", "relation %s: the name of file %q is not UTF-8", rel.Name, f.path))
			continue
		}
		if err := checkFile(rel, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			block(explain(rel, f, err))
		}
	}
	if len(findings) > 0 || rel.declared != nil {
		return findings, nil
	}
	if _, err := s.infer(ctx, rel); err != nil && !errors.Is(err, errNothingToInferFrom) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		block(err)
	}
	return findings, nil
}

// checkFile opens a file and sees that it begins as its format does.
func checkFile(rel *relation, f found) error {
	o, err := f.open()
	if err != nil {
		return err
	}
	defer o.file.Close()
	if rel.Format == Parquet {
		var magic [4]byte
		if _, err := o.file.ReadAt(magic[:], 0); err != nil && err != io.EOF {
			return err
		}
		if string(magic[:]) != "PAR1" && string(magic[:]) != "PARE" {
			return unreadableContent("the file does not begin as Parquet does (PAR1)")
		}
		return nil
	}
	r, err := o.decompressed()
	if err != nil {
		return err
	}
	return newWindow(r, 0).skipBOM()
}
