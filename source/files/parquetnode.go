package files

import (
	"bytes"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"tailrace/internal/change"
)

// node is one column of a Parquet schema with its levels. The values of a record come
// as one list a leaf; the levels of a value say how deep it is defined and which list
// goes on with it (the Dremel paper's encoding; the format's "Nested Encoding").
type node struct {
	name        string
	first, last int // leaves [first, last)
	children    []*node
	nested      bool // JSON in our rows: a group, or repeated
	optional    bool
	repeated    bool
	def, rep    int // levels from which on it is defined, at which it repeats
	shape       shape
	element     *node // listShape

	typ     change.Type // of the field in our rows; jsonb if it is nested
	kind    change.Kind // of a leaf's values
	inexact bool        // the type cannot hold every value: print is asked and fit again
	print   func(dst []byte, v parquet.Value) ([]byte, bool)
	quoted  bool // its text is a string in JSON
	exact   func(dst []byte, v parquet.Value) []byte
}

type shape uint8

const (
	plainShape shape = iota
	listShape        // the repeated child's element is an element of a JSON array
	mapShape         // the repeated child is key and value of a JSON object
)

// maxSchemaDepth keeps hostile schemas from exhausting the stack.
const maxSchemaDepth = 200

func newNode(c *parquet.Column, def, rep int) *node {
	n := &node{name: c.Name(), optional: c.Optional(), repeated: c.Repeated(), def: def, rep: rep}
	if len(c.Path()) > maxSchemaDepth {
		panic("more than 200 levels of nesting")
	}
	if n.optional || n.repeated {
		n.def++
	}
	if n.repeated {
		n.rep++
	}
	n.nested = n.repeated || !c.Leaf()
	if c.Leaf() {
		n.first, n.last = int(c.Index()), int(c.Index())+1
		n.describe(c)
		if n.nested {
			n.typ = typeJSONB
		}
		return n
	}
	n.typ = typeJSONB
	for i, child := range c.Columns() {
		m := newNode(child, n.def, n.rep)
		if i == 0 {
			n.first = m.first
		}
		n.last = m.last
		n.children = append(n.children, m)
	}
	n.shape = n.shapeOf(c)
	return n
}

// shapeOf recognises lists and maps by the format's rules (LogicalTypes.md, Lists,
// Maps, with the compatibility rules of lists).
func (n *node) shapeOf(c *parquet.Column) shape {
	if len(n.children) != 1 || !n.children[0].repeated {
		return plainShape
	}
	inner := n.children[0]
	logical := c.Type().LogicalType()
	if logical == nil {
		return plainShape
	}
	switch logical.Value.(type) {
	case *format.ListType:
		n.element = inner
		if len(inner.children) == 1 && inner.name != "array" && inner.name != n.name+"_tuple" {
			n.element = inner.children[0]
		}
		return listShape
	case *format.MapType:
		if len(inner.children) == 2 && inner.children[0].children == nil && !inner.children[0].repeated {
			return mapShape
		}
	}
	return plainShape
}

// null reports that a field of the record is NULL.
func (n *node) null(leaves [][]parquet.Value) bool {
	if n.first == n.last {
		return false
	}
	return n.optional && leaves[n.first][0].DefinitionLevel() < n.def
}

// json appends the field as JSON.
func (n *node) json(dst []byte, leaves [][]parquet.Value) []byte {
	if n.null(leaves) {
		return append(dst, "null"...)
	}
	if !n.repeated {
		return n.inner(dst, leaves)
	}
	dst = append(dst, '[')
	n.each(leaves, func(i int, part [][]parquet.Value) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = n.inner(dst, part)
	})
	return append(dst, ']')
}

// each calls f with the values of each element of a repeated node.
func (n *node) each(leaves [][]parquet.Value, f func(i int, part [][]parquet.Value)) {
	if n.first == n.last || leaves[n.first][0].DefinitionLevel() < n.def {
		return
	}
	part := make([][]parquet.Value, len(leaves))
	at := make([]int, n.last-n.first)
	for i := 0; ; i++ {
		for leaf := n.first; leaf < n.last; leaf++ {
			values := leaves[leaf]
			from := at[leaf-n.first]
			to := from
			for to < len(values) && (to == from || values[to].RepetitionLevel() > n.rep) {
				to++
			}
			if to == from {
				if leaf != n.first {
					panic("lists of one group differ in length")
				}
				return
			}
			part[leaf], at[leaf-n.first] = values[from:to], to
		}
		f(i, part)
	}
}

// inner appends one value that is there.
func (n *node) inner(dst []byte, leaves [][]parquet.Value) []byte {
	switch {
	case n.children == nil && n.print != nil:
		return n.scalar(dst, leaves[n.first][0])
	case n.shape == listShape:
		dst = append(dst, '[')
		n.children[0].each(leaves, func(i int, part [][]parquet.Value) {
			if i > 0 {
				dst = append(dst, ',')
			}
			if n.element == n.children[0] {
				dst = n.element.inner(dst, part)
			} else {
				dst = n.element.json(dst, part)
			}
		})
		return append(dst, ']')
	case n.shape == mapShape:
		dst = append(dst, '{')
		key, value := n.children[0].children[0], n.children[0].children[1]
		n.children[0].each(leaves, func(i int, part [][]parquet.Value) {
			if i > 0 {
				dst = append(dst, ',')
			}
			name := key.json(nil, part)
			if name[0] != '"' {
				name = appendJSONString(nil, name)
			}
			dst = value.json(append(append(dst, name...), ':'), part)
		})
		return append(dst, '}')
	}
	dst = append(dst, '{')
	for i, child := range n.children {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, child.name), ':')
		dst = child.json(dst, leaves)
	}
	return append(dst, '}')
}

// scalar appends a leaf's value as JSON: numbers and booleans as such, everything
// else as a string of its text. What the type cannot hold comes as exactly as the
// file has it.
func (n *node) scalar(dst []byte, v parquet.Value) []byte {
	start := len(dst)
	dst, ok := n.print(dst, v)
	if !ok {
		return n.exact(dst[:start], v)
	}
	text := dst[start:]
	switch {
	case n.kind == change.Bool:
		word := "false"
		if text[0] == 't' {
			word = "true"
		}
		return append(dst[:start], word...)
	case n.kind == change.JSONB:
		if ok, spaced := jsonText(text); ok {
			if spaced {
				return compact(dst[:start], bytes.Clone(text))
			}
			return dst
		}
	case !n.quoted && text[len(text)-1]-'0' <= 9: // not NaN, not Infinity
		return dst
	}
	return appendJSONString(dst[:start], bytes.Clone(text))
}
