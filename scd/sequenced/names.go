package sequenced

import (
	"encoding/json"
	"errors"
)

var errNames = errors.New("it is no array of column names")

// names reads an array of names: PostgreSQL's {a,"b c"} or JSON's ["a", "b c"].
// NULL elements are an error. The result is never nil.
func names(b []byte) ([]string, error) {
	out := []string{}
	if len(b) > 0 && b[0] == '[' {
		var list []*string
		if json.Unmarshal(b, &list) != nil {
			return nil, errNames
		}
		for _, s := range list {
			if s == nil {
				return nil, errNames
			}
			out = append(out, *s)
		}
		return out, nil
	}
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return nil, errNames
	}
	b = b[1 : len(b)-1]
	for len(b) > 0 {
		var name []byte
		quoted := b[0] == '"'
		if quoted {
			b = b[1:]
			for {
				if len(b) == 0 {
					return nil, errNames
				}
				if b[0] == '"' {
					b = b[1:]
					break
				}
				if b[0] == '\\' && len(b) > 1 {
					b = b[1:]
				}
				name, b = append(name, b[0]), b[1:]
			}
		} else {
			for len(b) > 0 && b[0] != ',' {
				if b[0] == '{' || b[0] == '}' {
					return nil, errNames
				}
				name, b = append(name, b[0]), b[1:]
			}
			if len(name) == 0 || string(name) == "NULL" {
				return nil, errNames
			}
		}
		out = append(out, string(name))
		if len(b) > 0 {
			if b[0] != ',' || len(b) == 1 {
				return nil, errNames
			}
			b = b[1:]
		}
	}
	return out, nil
}
