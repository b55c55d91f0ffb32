package checkpoint

import (
	"strings"

	"tailrace/internal/change"
)

// PlaceText is how a destination keeps a mark's Position and Resume, in the one text
// that has always held the position: the position as it prints, and behind a space the
// resume, if there is one. So the two are never apart, and marks of earlier versions
// are read as they are.
func PlaceText(p change.Position, resume string) string {
	if resume == "" {
		return p.String()
	}
	return p.String() + " " + resume
}

// ParsePlace reads what PlaceText writes. Errors name the text.
func ParsePlace(text string) (p change.Position, resume string, err error) {
	position, resume, _ := strings.Cut(text, " ")
	p, err = change.ParsePosition(position)
	return p, resume, err
}
