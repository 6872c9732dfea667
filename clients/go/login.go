package palisade

import (
	"context"
	"net/http"
)

// LoginHandler is a handler of a login form: it asks the guard, verifies, and answers. Refusals
// and input that cannot be read are sent as Palisade says them.
type LoginHandler struct {
	Guard *Guard
	// Facts says who tries. The address and both headers of the browser come from the request
	// where they are empty, behind [Client.Edge].
	Facts func(*http.Request) (AttemptFacts, error)
	// Verify checks the credential and tells the attempt if it was right: [Guard.Login]. With an
	// error the request is answered 500.
	Verify func(*http.Request, *Attempt) error
	// Welcome answers after a success.
	Welcome http.HandlerFunc
	// Wrong answers after everything else; 401 if it is nil. A wrong name and a wrong password
	// must look alike.
	Wrong http.HandlerFunc
}

// ServeHTTP is one attempt.
func (h LoginHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	attempt, err := h.attempt(r)
	if err != nil {
		h.Guard.client.fail(w, err)
		return
	}
	if attempt.Outcome == Success {
		h.Welcome(w, r)
	} else if h.Wrong != nil {
		h.Wrong(w, r)
	} else {
		http.Error(w, "wrong name or password", http.StatusUnauthorized)
	}
}

func (h LoginHandler) attempt(r *http.Request) (*Attempt, error) {
	facts, err := h.Facts(r)
	if err != nil {
		return nil, err
	}
	if facts.IP == "" {
		seen, err := SeenIn(r.Context())
		if err != nil {
			return nil, err
		}
		facts.IP = seen.IP()
	}
	if facts.UserAgent == "" {
		facts.UserAgent = r.UserAgent()
	}
	if facts.AcceptLanguage == "" {
		facts.AcceptLanguage = r.Header.Get("Accept-Language")
	}
	return h.Guard.Login(r.Context(), facts, func(ctx context.Context, attempt *Attempt) error {
		return h.Verify(r.WithContext(ctx), attempt)
	})
}
