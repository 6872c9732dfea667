package palisade

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"unicode"
)

// Layers says which part of a decision is asked for (L-LAYERS).
type Layers string

// AllLayers is the default. A host that asks twice, before authentication and after it, asks for
// the other two.
const (
	AllLayers     Layers = "all"
	EdgeLayer     Layers = "edge"
	IdentityLayer Layers = "identity"
)

// OAuthClient is the OAuth client that a request names (L-CLIENT).
type OAuthClient struct {
	ID string
	// Type is `confidential`, `public` or empty.
	Type string
}

// CheckFacts is what [Client.Check], [Client.Peek] and [Client.Batch] ask about:
// [RequestFacts] or [JobFacts].
type CheckFacts interface {
	check() question
}

// RequestFacts is what is known about one request. Empty fields are not sent.
type RequestFacts struct {
	IP     string
	Method string
	Path   string
	// Layers is [AllLayers] if empty.
	Layers    Layers
	Class     string
	UserAgent string
	Org       string
	User      string
	// Token is the token's id, never the token.
	Token  string
	Scopes []string
	Client *OAuthClient
	APIKey string
	// Cost is 1 if nil: [Cost].
	Cost *int
	// Receipt asks for one, with which the charge can be given back.
	Receipt bool
	// RequestID is a new one if empty.
	RequestID     string
	CorrelationID string
}

// JobFacts is a background job about to be queued (T-JOBS): quotas of its organisation and
// token. Its answer carries a receipt.
type JobFacts struct {
	Org   string
	Token string
	User  string
	Class string
	// Cost is 1 if nil: [Cost].
	Cost          *int
	RequestID     string
	CorrelationID string
}

// Device is the device of an attempt, as far as the host knows it.
type Device struct {
	SessionID   string
	ClientID    string
	Fingerprint string
	// Confidence in the fingerprint: `low`, `medium` or `high`.
	Confidence string
	// Known and Trusted are what the host asserts: [Bool].
	Known   *bool
	Trusted *bool
}

// AttemptFacts is one attempt with a password or a code.
type AttemptFacts struct {
	IP      string
	Account string
	// Username is the name as typed, which the lockout counts on. It is sent even if it is
	// empty: Palisade refuses an empty name.
	Username string
	// NoUsername says that nobody typed a name. Then there is no lockout and no delay.
	NoUsername      bool
	Device          Device
	UserAgent       string
	AcceptLanguage  string
	ChallengePassed bool
	RequestID       string
	CorrelationID   string
}

// HitFacts is one call of a heavy endpoint (G-API).
type HitFacts struct {
	IP             string
	Account        string
	Device         Device
	UserAgent      string
	AcceptLanguage string
	RequestID      string
	CorrelationID  string
}

// Cost is a cost for [RequestFacts] and [JobFacts]. Of nothing it is refused: a cost that was
// computed wrongly must not count as 1.
func Cost(cost int) *int { return &cost }

// Bool is an assertion for [Device].
func Bool(value bool) *bool { return &value }

// No verb prints who it is.

func (RequestFacts) String() string   { return "palisade.RequestFacts" }
func (RequestFacts) GoString() string { return "palisade.RequestFacts" }
func (JobFacts) String() string       { return "palisade.JobFacts" }
func (JobFacts) GoString() string     { return "palisade.JobFacts" }
func (AttemptFacts) String() string   { return "palisade.AttemptFacts" }
func (AttemptFacts) GoString() string { return "palisade.AttemptFacts" }
func (HitFacts) String() string       { return "palisade.HitFacts" }
func (HitFacts) GoString() string     { return "palisade.HitFacts" }
func (Device) String() string         { return "palisade.Device" }
func (Device) GoString() string       { return "palisade.Device" }
func (OAuthClient) String() string    { return "palisade.OAuthClient" }
func (OAuthClient) GoString() string  { return "palisade.OAuthClient" }

// question is what is sent, its id, and what local caps count on.
type question struct {
	wire      map[string]any
	requestID string
	subjects  []string
}

const headerCharsMax = 512

// newRequestID joins a check with its outcome, and makes a second try harmless.
func newRequestID() string {
	return hex.EncodeToString(randomBytes(16))
}

func randomBytes(count int) []byte {
	bytes := make([]byte, count)
	if _, err := rand.Read(bytes); err != nil {
		// As the Go runtime itself does since 1.24: nothing works without them.
		panic("palisade: the system has no random numbers: " + err.Error())
	}
	return bytes
}

// headerText makes a client's header printable and bounded, so that a strange one does not make
// the whole question unreadable.
func headerText(value string) string {
	if len(value) > 4*headerCharsMax {
		value = value[:4*headerCharsMax]
	}
	printable := func(char rune) rune {
		if char == unicode.ReplacementChar || !unicode.IsPrint(char) {
			return -1
		}
		return char
	}
	chars := []rune(strings.Map(printable, value))
	if len(chars) > headerCharsMax {
		chars = chars[:headerCharsMax]
	}
	return string(chars)
}

// wired begins a question with its ids. Its own methods add what is not empty.
func wired(requestID, correlationID string) question {
	if requestID == "" {
		requestID = newRequestID()
	}
	q := question{wire: map[string]any{"request_id": requestID}, requestID: requestID}
	q.text("correlation_id", correlationID)
	return q
}

func (q *question) text(name, value string) {
	if value != "" {
		q.wire[name] = value
	}
}

func (q *question) flag(name string, value bool) {
	if value {
		q.wire[name] = true
	}
}

func (q *question) cost(cost *int) {
	if cost != nil {
		q.wire["cost"] = *cost
	}
}

// subject is something that local caps count on.
func (q *question) subject(kind, value string) {
	if value != "" {
		q.subjects = append(q.subjects, kind+" "+value)
	}
}

func (f RequestFacts) check() question {
	q := wired(f.RequestID, f.CorrelationID)
	q.wire["ip"], q.wire["method"], q.wire["path"] = f.IP, f.Method, f.Path
	if f.Layers != AllLayers {
		q.text("layers", string(f.Layers))
	}
	q.text("class", f.Class)
	q.text("user_agent", headerText(f.UserAgent))
	q.text("org", f.Org)
	q.text("user", f.User)
	q.text("token", f.Token)
	q.text("api_key", f.APIKey)
	if f.Scopes != nil {
		q.wire["scopes"] = f.Scopes
	}
	if f.Client != nil {
		client := question{wire: map[string]any{"id": f.Client.ID}}
		client.text("type", f.Client.Type)
		q.wire["client"] = client.wire
	}
	q.cost(f.Cost)
	q.flag("receipt", f.Receipt)
	// Of a request that is asked about in two layers the first one counts the address.
	if f.Layers != IdentityLayer {
		q.subject("ip", f.IP)
	}
	if f.Layers != EdgeLayer {
		q.subject("org", f.Org)
		q.subject("user", f.User)
		q.subject("token", f.Token)
	}
	return q
}

func (f JobFacts) check() question {
	q := wired(f.RequestID, f.CorrelationID)
	q.wire["op"], q.wire["org"] = "job.enqueue", f.Org
	q.text("token", f.Token)
	q.text("user", f.User)
	q.text("class", f.Class)
	q.cost(f.Cost)
	q.subject("org", f.Org)
	q.subject("token", f.Token)
	return q
}

func (f AttemptFacts) question() question {
	q := wired(f.RequestID, f.CorrelationID)
	q.wire["ip"], q.wire["account"] = f.IP, f.Account
	if !f.NoUsername {
		q.wire["username"] = f.Username
	}
	q.browser(f.Device, f.UserAgent, f.AcceptLanguage)
	q.flag("challenge_passed", f.ChallengePassed)
	q.subject("account", f.Account)
	q.subject("ip", f.IP)
	return q
}

func (f HitFacts) question() question {
	q := wired(f.RequestID, f.CorrelationID)
	q.wire["ip"] = f.IP
	q.text("account", f.Account)
	q.browser(f.Device, f.UserAgent, f.AcceptLanguage)
	q.subject("ip", f.IP)
	return q
}

func (q *question) browser(device Device, userAgent, acceptLanguage string) {
	d := question{wire: map[string]any{}}
	d.text("session_id", device.SessionID)
	d.text("client_id", device.ClientID)
	d.text("fingerprint", device.Fingerprint)
	d.text("confidence", device.Confidence)
	if device.Known != nil {
		d.wire["known"] = *device.Known
	}
	if device.Trusted != nil {
		d.wire["trusted"] = *device.Trusted
	}
	if len(d.wire) > 0 {
		q.wire["device"] = d.wire
	}
	q.text("user_agent", headerText(userAgent))
	q.text("accept_language", headerText(acceptLanguage))
}
