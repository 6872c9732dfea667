// Package palisade asks a Palisade server: rate limits, quotas, and protection of logins.
//
// Everything that decides takes an [OnUnavailable]: [Closed], [Open] or [*Caps]. There is no
// default. [Client.Edge] and [Client.Identity] are middleware for net/http, [Guard] protects
// logins and one-time codes, and the package palisadetest has a test double.
package palisade

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Options of a [Client]. The zero value is good on loopback.
type Options struct {
	// Token is the caller token, if Palisade wants one.
	Token string
	// Deadline bounds a whole question: waiting for a connection, looking up the server's name,
	// connecting, TLS, sending, receiving, and a second try. 250 ms if it is 0.
	Deadline time.Duration
	// ConnectionsMax bounds the connections. 64 if it is 0.
	ConnectionsMax int
	// TLS holds an authority of your own and the certificate of the caller.
	TLS *tls.Config
	// Transport takes the place of the network. [palisadetest] uses it.
	Transport http.RoundTripper
	// Log hears once when Palisade cannot be asked, and when it can be again. The standard
	// logger if it is nil.
	Log func(message string)
}

// Client asks a Palisade server. Make one per process: its connections are shared.
type Client struct {
	url      string
	token    string
	deadline time.Duration
	http     *http.Client
	log      func(message string)
	lost     atomic.Bool
}

// New makes a client for `http://host:port` or `https://host:port`.
func New(server string, options Options) (*Client, error) {
	parsed, err := url.Parse(server)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") ||
		parsed.Hostname() == "" || parsed.User != nil || strings.Trim(parsed.Path, "/") != "" ||
		parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, &MisconfiguredError{"the URL must look like `http://127.0.0.1:8080`"}
	}
	if strings.IndexFunc(options.Token, notOfHeader) >= 0 {
		return nil, &MisconfiguredError{"`Token` must be printable ASCII without spaces or line ends"}
	}
	if options.Deadline < 0 || options.ConnectionsMax < 0 {
		return nil, &MisconfiguredError{"`Deadline` and `ConnectionsMax` must be positive"}
	}
	if options.Deadline == 0 {
		options.Deadline = 250 * time.Millisecond
	}
	if options.ConnectionsMax == 0 {
		options.ConnectionsMax = 64
	}
	client := &Client{
		url:      parsed.Scheme + "://" + parsed.Host,
		token:    options.Token,
		deadline: options.Deadline,
		log:      options.Log,
		http:     &http.Client{Transport: options.Transport, CheckRedirect: asItIs},
	}
	if client.log == nil {
		client.log = func(message string) { log.Print(message) }
	}
	if options.Transport == nil {
		client.http.Transport = connections(options)
	}
	return client, nil
}

// notOfHeader is true for what cannot stand in a header: a token that was read from a file with
// its line end must be noticed at the start, not be taken for an outage.
func notOfHeader(char rune) bool { return char <= ' ' || char > '~' }

// Check decides and counts.
func (c *Client) Check(ctx context.Context, facts CheckFacts, choice OnUnavailable) (Answer, error) {
	return c.decide(ctx, "/v1/check", facts.check(), choice)
}

// Peek decides and counts nothing.
func (c *Client) Peek(ctx context.Context, facts CheckFacts, choice OnUnavailable) (Answer, error) {
	return c.decide(ctx, "/v1/peek", facts.check(), choice)
}

// APIHit counts a call of a heavy endpoint.
func (c *Client) APIHit(ctx context.Context, facts HitFacts, choice OnUnavailable) (Answer, error) {
	return c.decide(ctx, "/v1/guard/api/hit", facts.question(), choice)
}

// Batch asks up to 1,000 checks in one call, answered in their order.
func (c *Client) Batch(ctx context.Context, checks []CheckFacts, choice OnUnavailable) ([]Answer, error) {
	if err := requireChoice(choice); err != nil {
		return nil, err
	}
	questions, wires := make([]question, len(checks)), make([]map[string]any, len(checks))
	for index, facts := range checks {
		questions[index] = facts.check()
		wires[index] = questions[index].wire
	}
	answers, err := c.batch(ctx, questions, map[string]any{"checks": wires})
	if !isUnavailable(err) {
		return answers, err
	}
	answers = make([]Answer, len(questions))
	for index, q := range questions {
		answers[index] = choice.decide(q)
	}
	return answers, nil
}

func (c *Client) batch(ctx context.Context, questions []question, wire map[string]any) ([]Answer, error) {
	raw, err := c.ask(ctx, http.MethodPost, "/v1/batch", wire)
	if err != nil {
		return nil, err
	}
	var found struct {
		Answers []json.RawMessage `json:"answers"`
	}
	if json.Unmarshal(raw, &found) != nil || len(found.Answers) != len(questions) {
		return nil, &UnavailableError{"the answer has not one member for each check"}
	}
	answers := make([]Answer, len(questions))
	for index, q := range questions {
		if answers[index], err = parse(found.Answers[index], q.requestID); err != nil {
			return nil, err
		}
		if err = known(answers[index], q, fmt.Sprintf("checks[%d].class", index)); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// Refund gives back what the check with this receipt took; true if it was still counted. The
// error is an [*UnavailableError] if nobody could be asked.
func (c *Client) Refund(ctx context.Context, receipt string) (bool, error) {
	wire := map[string]any{"receipt": receipt, "request_id": newRequestID()}
	raw, err := c.ask(ctx, http.MethodPost, "/v1/refund", wire)
	if err != nil {
		return false, err
	}
	var found struct {
		Refunded bool `json:"refunded"`
	}
	if json.Unmarshal(raw, &found) != nil {
		return false, &UnavailableError{"the answer cannot be read"}
	}
	return found.Refunded, nil
}

// Enqueue asks before a job is queued; the error is a [*BlockedError] if it may not be. If queue
// fails or panics, the job is not queued and the charge is given back.
func (c *Client) Enqueue(
	ctx context.Context, facts JobFacts, choice OnUnavailable, queue func(context.Context) error,
) error {
	answer, err := c.Check(ctx, facts, choice)
	if err != nil {
		return err
	}
	if !answer.Allowed() {
		return &BlockedError{answer}
	}
	queued := false
	defer func() {
		if !queued && answer.Receipt != "" {
			// Whoever waited for the queue may be gone; the charge is given back all the same.
			_, _ = c.Refund(detached{ctx}, answer.Receipt)
		}
	}()
	if err := queue(ctx); err != nil {
		return err
	}
	queued = true
	return nil
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// decide asks for a decision; the choice decides if there is none.
func (c *Client) decide(ctx context.Context, path string, q question, choice OnUnavailable) (Answer, error) {
	if err := requireChoice(choice); err != nil {
		return Answer{}, err
	}
	answer, err := c.answer(ctx, path, q)
	if isUnavailable(err) {
		return choice.decide(q), nil
	}
	return answer, err
}

func (c *Client) answer(ctx context.Context, path string, q question) (Answer, error) {
	raw, err := c.ask(ctx, http.MethodPost, path, q.wire)
	if err != nil {
		return Answer{}, err
	}
	answer, err := parse(raw, q.requestID)
	if err != nil {
		return Answer{}, err
	}
	return answer, known(answer, q, "class")
}

// known refuses a class that no limit covers, by the field's name. Palisade denies such a
// request with 503; where the application has named the class itself it is misspelt, or missing
// in the policy.
func known(answer Answer, q question, field string) error {
	if answer.Rule != "L-DEFAULT-DENY" || q.wire["class"] == nil {
		return nil
	}
	return &BadFactsError{field, "`" + field + "` names a class that no limit of the policy covers"}
}

func isUnavailable(err error) bool {
	var unavailable *UnavailableError
	return errors.As(err, &unavailable)
}

// detached keeps the values of a context and neither its end nor its deadline.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }
