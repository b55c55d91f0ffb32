package source

// Namer is a Source whose transactions have names that people know (GTIDs).
type Namer interface {
	// Covers reports whether all transactions that a mark's Resume says are in the
	// destination are among a set that is written as the server writes it. It refuses a set
	// that it cannot read (fault.Badly), also beside an empty resume. It asks nobody.
	Covers(set, resume string) (bool, error)
}
