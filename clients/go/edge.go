package palisade

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

var plainID = regexp.MustCompile(`^[A-Za-z0-9_.:/+=@~-]{1,128}$`)

// Middleware is what net/http, chi and others wrap a handler with.
type Middleware = func(http.Handler) http.Handler

// Identity is whom authentication found.
type Identity struct {
	Org  string
	User string
	// Token is the token's id, never the token.
	Token  string
	Scopes []string
	APIKey string
}

func (Identity) String() string   { return "palisade.Identity" }
func (Identity) GoString() string { return "palisade.Identity" }

// EdgeOptions says how the layer before authentication asks.
type EdgeOptions struct {
	OnUnavailable OnUnavailable
	// TrustedProxies are those whose `X-Forwarded-For` is believed: networks, addresses, or
	// `unix` where the server listens on a Unix socket.
	TrustedProxies []string
	// Layers is [EdgeLayer] if empty. [AllLayers] asks once for everything, for applications
	// without identities.
	Layers Layers
	// AsksNothing leaves the question to a proxy in front. [SeenIn] knows the client all the same.
	AsksNothing bool
	// Facts adds what the host knows besides: a class, a cost, an OAuth client.
	Facts func(*http.Request, *RequestFacts)
}

// IdentityOptions says how the layer after authentication asks.
type IdentityOptions struct {
	OnUnavailable OnUnavailable
	// Identity is whom authentication found; nil for nobody, who is refused where the route has a
	// scope. With an error the request is answered 500.
	Identity func(*http.Request) (*Identity, error)
	// Facts adds what the host knows besides: a class, a cost, an OAuth client.
	Facts func(*http.Request, *RequestFacts)
}

// Seen is one request on its way through the application, and every answer about it.
type Seen struct {
	facts   RequestFacts
	lock    sync.Mutex
	answers []Answer
}

// IP is the client's address, for the guard.
func (s *Seen) IP() string { return s.facts.IP }

// RequestID is the request's id, in the answer's `X-Request-Id` too.
func (s *Seen) RequestID() string { return s.facts.RequestID }

// Answers are those about this request so far.
func (s *Seen) Answers() []Answer {
	s.lock.Lock()
	defer s.lock.Unlock()
	return append([]Answer(nil), s.answers...)
}

func (s *Seen) add(answer Answer) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.answers = append(s.answers, answer)
}

type seenKey struct{}

// SeenIn is what [Client.Edge] knows about the request of this context.
func SeenIn(ctx context.Context) (*Seen, error) {
	seen, ok := ctx.Value(seenKey{}).(*Seen)
	if !ok {
		return nil, &MisconfiguredError{"use the middleware of `Edge` before everything else"}
	}
	return seen, nil
}

// Edge asks before authentication: throttle, allowlist, address. It stands first.
func (c *Client) Edge(options EdgeOptions) (Middleware, error) {
	if err := requireChoice(options.OnUnavailable); err != nil {
		return nil, err
	}
	proxies, err := newTrustedProxies(options.TrustedProxies)
	if err != nil {
		return nil, err
	}
	if options.Layers == "" {
		options.Layers = EdgeLayer
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen, err := see(r, proxies, options)
			if err != nil {
				c.fail(w, err)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), seenKey{}, seen))
			w.Header().Set("X-Request-Id", seen.RequestID())
			if options.AsksNothing || c.passes(w, r, seen, seen.facts, options.OnUnavailable) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// Identity asks after authentication: organisation, user, token, scopes, quotas. It stands
// behind [Client.Edge]. Nobody is asked about too: a route with a scope is not for callers
// without an identity.
func (c *Client) Identity(options IdentityOptions) (Middleware, error) {
	if err := requireChoice(options.OnUnavailable); err != nil {
		return nil, err
	}
	if options.Identity == nil {
		return nil, &MisconfiguredError{"`Identity` must say whom authentication found"}
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen, err := SeenIn(r.Context())
			if err != nil {
				c.fail(w, err)
				return
			}
			who, err := options.Identity(r)
			if err != nil {
				c.fail(w, err)
				return
			}
			facts := seen.identityFacts(who)
			if options.Facts != nil {
				options.Facts(r, &facts)
			}
			if c.passes(w, r, seen, facts, options.OnUnavailable) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// see reads a request as the application will see it.
func see(r *http.Request, proxies trustedProxies, options EdgeOptions) (*Seen, error) {
	ip, believed, err := proxies.client(r.RemoteAddr, r.Header.Values("X-Forwarded-For"))
	requestID := r.Header.Get("X-Request-Id")
	if !believed || !plainID.MatchString(requestID) {
		requestID = newRequestID()
	}
	var chain *badChainError
	if errors.As(err, &chain) {
		bad := BadFactsError{"x-forwarded-for", "`X-Forwarded-For` cannot be read"}
		return nil, &BadInputError{bad, badRequest(requestID, bad.Detail, "")}
	}
	if err != nil {
		return nil, err
	}
	path, err := routed(r.URL, requestID)
	if err != nil {
		return nil, err
	}
	facts := RequestFacts{
		IP:        ip,
		Method:    r.Method,
		Path:      path,
		Layers:    options.Layers,
		UserAgent: r.UserAgent(),
		RequestID: requestID,
	}
	if options.Facts != nil {
		options.Facts(r, &facts)
	}
	return &Seen{facts: facts}, nil
}

// routed is the path in the one spelling that is counted. Routers differ in how they read escaped
// slashes and dots as segments, so a path with them could be counted as another one than the
// router takes: it is refused, as Palisade refuses the slashes.
func routed(url *url.URL, requestID string) (string, error) {
	raw := strings.ToLower(url.RawPath)
	// RawPath is empty where the path is escaped as Go itself escapes it, %5C for example.
	ambiguous := strings.Contains(raw, "%2f") || strings.Contains(url.Path, "\\")
	for _, segment := range strings.Split(url.Path, "/") {
		ambiguous = ambiguous || segment == "." || segment == ".."
	}
	if ambiguous {
		bad := BadFactsError{"path", "`path` must not contain dot segments or escaped slashes"}
		return "", &BadInputError{bad, badRequest(requestID, bad.Detail, bad.Field)}
	}
	path := *url
	path.RawPath = ""
	if escaped := path.EscapedPath(); escaped != "" {
		return escaped, nil
	}
	return "/", nil
}

func (s *Seen) identityFacts(who *Identity) RequestFacts {
	facts := s.facts
	facts.Layers = IdentityLayer
	if who != nil {
		facts.Org, facts.User, facts.Token = who.Org, who.User, who.Token
		facts.Scopes, facts.APIKey = who.Scopes, who.APIKey
	}
	return facts
}

// passes asks about a request and sends the refusal if there is one.
func (c *Client) passes(
	w http.ResponseWriter, r *http.Request, seen *Seen, facts RequestFacts, choice OnUnavailable,
) bool {
	answer, err := c.Check(r.Context(), facts, choice)
	if err != nil {
		c.fail(w, err)
		return false
	}
	seen.add(answer)
	for name, value := range mergedHeaders(seen.Answers()) {
		w.Header().Set(name, value)
	}
	if !answer.Allowed() {
		send(w, answer)
	}
	return answer.Allowed()
}

// fail answers what is no decision. What is neither a refusal nor a client that is gone is a
// mistake of the host, and is logged.
func (c *Client) fail(w http.ResponseWriter, err error) {
	if SendRefusal(w, err) {
		return
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.log("a request was answered 500: " + err.Error())
	http.Error(w, "internal error", http.StatusInternalServerError)
}

// SendRefusal sends what a guard refused as Palisade says it, and 400 for input that cannot be
// read. It is false, and nothing is sent, if the error is something else.
func SendRefusal(w http.ResponseWriter, err error) bool {
	var blocked *BlockedError
	var bad *BadInputError
	switch {
	case errors.As(err, &blocked):
		send(w, blocked.Answer)
	case errors.As(err, &bad):
		send(w, bad.Answer)
	default:
		return false
	}
	return true
}

func send(w http.ResponseWriter, answer Answer) {
	for name, value := range answer.Headers {
		w.Header().Set(name, value)
	}
	w.Header().Set("X-Request-Id", answer.RequestID)
	w.Header().Set("Content-Length", strconv.Itoa(len(answer.Body)))
	if len(answer.Body) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(answer.Status)
	// A client that is gone does not read its refusal.
	_, _ = w.Write(answer.Body)
}
