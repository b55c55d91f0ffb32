package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"tailrace/internal/fault"
	"tailrace/scd"
)

// SequenceValues takes apart a value of a sequence of several columns as a person
// writes it: a JSON object of them, as __START_AT shows it, or (1, 2), the values in the
// columns' order, with double quotes around one that holds a comma, a quote (written
// twice) or blanks that count. It returns the values' texts in the columns' order. The
// error is about usage.
func SequenceValues(t *scd.Target, text string) ([]string, error) {
	fields := t.SequenceFields
	var names []string
	for i := range fields {
		names = append(names, fields[i].Name)
	}
	bad := func(what string) error {
		return fault.Badly("%q is no value of the sequence of target %s (%s): %s", text, t.Name, strings.Join(names, ", "), what)
	}
	trimmed := strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(trimmed, "{"):
		d := json.NewDecoder(bytes.NewReader([]byte(trimmed)))
		d.UseNumber()
		var object map[string]any
		if err := d.Decode(&object); err != nil || d.More() {
			return nil, bad("it is no JSON object")
		}
		values := make([]string, len(fields))
		for i, name := range names {
			switch v := object[name].(type) {
			case string:
				values[i] = v
			case json.Number, bool:
				values[i] = fmt.Sprint(v)
			default:
				return nil, bad("it gives no " + name)
			}
		}
		if len(object) != len(fields) {
			return nil, bad("it gives other columns too")
		}
		return values, nil
	case strings.HasPrefix(trimmed, "(") && strings.HasSuffix(trimmed, ")"):
		values, ok := splitRow(trimmed[1 : len(trimmed)-1])
		if !ok || len(values) != len(fields) {
			return nil, bad(fmt.Sprintf("it gives not %d values", len(fields)))
		}
		return values, nil
	}
	return nil, bad(`write {"column": value, ...} or (value, ...)`)
}

// splitRow splits a list of values at commas.
func splitRow(text string) (values []string, ok bool) {
	for {
		var value strings.Builder
		text = strings.TrimLeft(text, " ")
		if quoted := strings.HasPrefix(text, `"`); quoted {
			text = text[1:]
			for {
				part, rest, closed := strings.Cut(text, `"`)
				if !closed {
					return nil, false
				}
				value.WriteString(part)
				if text = rest; !strings.HasPrefix(text, `"`) {
					break
				}
				value.WriteByte('"')
				text = text[1:]
			}
			text = strings.TrimLeft(text, " ")
			if text != "" && text[0] != ',' {
				return nil, false
			}
		} else {
			part, _, _ := strings.Cut(text, ",")
			text = text[len(part):]
			value.WriteString(strings.TrimRight(part, " "))
		}
		values = append(values, value.String())
		if text == "" {
			return values, true
		}
		text = text[1:]
	}
}
