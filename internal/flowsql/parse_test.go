package flowsql

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// same compares two trees apart from places.
func same(a, b reflect.Value) bool {
	if a.Type() != b.Type() {
		return false
	}
	switch a.Type() {
	case reflect.TypeFor[Pos](), reflect.TypeFor[Span]():
		return true
	case reflect.TypeFor[token]():
		return a.FieldByName("text").String() == b.FieldByName("text").String() && a.FieldByName("kind").Uint() == b.FieldByName("kind").Uint()
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return same(a.Elem(), b.Elem())
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	}
	return a.Int() == b.Int()
}

// sameStatements reports whether two files say the same.
func sameStatements(a, b *File) bool {
	return same(reflect.ValueOf(a.Statements), reflect.ValueOf(b.Statements))
}

// roundTrip checks that the canonical form of a file says the same and is its own
// canonical form.
func roundTrip(t *testing.T, f *File) {
	t.Helper()
	printed := f.String()
	again, err := Parse("printed.sql", printed)
	if err != nil {
		t.Fatalf("the canonical form cannot be parsed: %v\n%s\nfrom\n%s", err, printed, f.Text)
	}
	if !sameStatements(f, again) {
		t.Fatalf("the canonical form says something else:\n%s\nfrom\n%s", printed, f.Text)
	}
	if twice := again.String(); twice != printed {
		t.Fatalf("the canonical form changes:\n%s\n%s", printed, twice)
	}
}

// The SQL of the documents is parsed as it is printed there.
func TestTheDocumentsParseVerbatim(t *testing.T) {
	files, err := filepath.Glob("testdata/documents/*.sql")
	if err != nil || len(files) != 11 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(path, string(text))
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		roundTrip(t, f)
		if testing.Verbose() {
			t.Logf("\n%s", f)
		}
	}
}
