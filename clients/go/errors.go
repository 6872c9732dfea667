package palisade

// UnavailableError says that Palisade could not be asked, or did not answer before the deadline.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string { return "palisade cannot be asked: " + e.Reason }

// BadFactsError names a field of the question that Palisade refused, never its value. It is a
// mistake of the application unless it is part of a [BadInputError].
type BadFactsError struct {
	Field  string
	Detail string
}

func (e *BadFactsError) Error() string { return e.Detail }

// BadInputError is a [BadFactsError] about a field that holds what a client sent. Answer is
// the 400 to send: its body names the field, never the value. [SendRefusal] sends it.
type BadInputError struct {
	BadFactsError
	Answer Answer
}

// Unwrap makes [errors.As] find the [BadFactsError] too.
func (e *BadInputError) Unwrap() error { return &e.BadFactsError }

// MisconfiguredError says that the set-up cannot work: a wrong caller token, an unknown peer
// address, a bad option. [OnUnavailable] never answers it: a wrong token must be noticed on the
// first request, not let everything through.
type MisconfiguredError struct{ Detail string }

func (e *MisconfiguredError) Error() string { return e.Detail }

// BlockedError is a decision that is not `allow`. Answer has status, headers and body to send.
type BlockedError struct{ Answer Answer }

func (e *BlockedError) Error() string {
	why := string(e.Answer.Mode)
	if e.Answer.Error != "" {
		why = e.Answer.Error
	}
	if e.Answer.Rule != "" {
		why = e.Answer.Rule
	}
	return string(e.Answer.Decision) + ": " + why
}
