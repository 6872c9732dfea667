package palisade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	answerBytesMax = 16 << 20
	// The server closes an idle connection after a minute: we let go of it first.
	idleMax = 30 * time.Second
)

// connections is a pool of our own. The default one follows the proxy of the environment and
// holds an unbounded number of connections.
func connections(options Options) *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:        options.TLS,
		MaxConnsPerHost:        options.ConnectionsMax,
		MaxIdleConnsPerHost:    options.ConnectionsMax,
		IdleConnTimeout:        idleMax,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// asItIs takes a redirect as the answer: Palisade never sends one.
func asItIs(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// ask sends one question and returns the JSON of its answer. What is no answer is an error: the
// caller's own end of the context as it is, everything else as one of this package's.
func (c *Client) ask(ctx context.Context, method, path string, wire map[string]any) (json.RawMessage, error) {
	bounded, cancel := context.WithTimeout(ctx, c.deadline)
	defer cancel()
	return c.askBy(ctx, bounded, method, path, wire)
}

// askBy is ask with a deadline that other questions share.
func (c *Client) askBy(
	ctx, bounded context.Context, method, path string, wire map[string]any,
) (json.RawMessage, error) {
	if torn := notUnicode(wire); torn != "" {
		return nil, refused(wire, torn, "`"+torn+"` is not Unicode text")
	}
	status, body, err := c.exchange(bounded, method, path, wire)
	if err != nil {
		if gone := ctx.Err(); gone != nil {
			// Nobody waits for a decision any more: that is no outage.
			return nil, gone
		}
		return nil, c.unreachable(reason(bounded, err))
	}
	// A settle that the store could not record yet is accepted.
	if status == http.StatusOK || status == http.StatusAccepted {
		if c.lost.Swap(false) {
			c.log("palisade answers again")
		}
		return body, nil
	}
	if err := problem(status, body, wire); err != nil {
		return nil, err
	}
	return nil, c.unreachable(fmt.Sprintf("answered %d", status))
}

// unreachable is the outage as an error; it is logged once.
func (c *Client) unreachable(why string) error {
	if !c.lost.Swap(true) {
		c.log("palisade cannot be asked (" + why + "): `OnUnavailable` decides")
	}
	return &UnavailableError{why}
}

func (c *Client) exchange(ctx context.Context, method, path string, wire map[string]any) (int, []byte, error) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(wire); err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, &body)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if c.token != "" {
		request.Header.Set("X-Palisade-Caller", c.token)
	}
	// Present and empty: not sent, but a kept connection that was closed while it lay idle is
	// replaced. The question has an id, so that a second one changes nothing.
	request.Header["Idempotency-Key"] = nil
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	// What is larger is cut off, and then it is no JSON.
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	return response.StatusCode, answer, err
}

// reason says what went wrong on the way, without the URL.
func reason(ctx context.Context, err error) string {
	var name *net.DNSError
	var timeout net.Error
	switch {
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return "no answer before the deadline"
	case errors.As(err, &name):
		return "its name is not known"
	default:
		return "it cannot be reached"
	}
}

// problem is what an answer that is no decision says about the question or the set-up; nil if
// it is an outage.
func problem(status int, body []byte, wire map[string]any) error {
	var found struct {
		Detail string `json:"detail"`
		Field  string `json:"field"`
	}
	// What cannot be read says nothing; the status speaks for itself.
	_ = json.Unmarshal(body, &found)
	switch status {
	case http.StatusRequestEntityTooLarge:
		field := longest(wire)
		return refused(wire, field, "`"+field+"` is too long")
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if found.Detail == "" {
			found.Detail = "palisade refused the question"
		}
		return refused(wire, found.Field, found.Detail)
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		if found.Detail == "" {
			found.Detail = fmt.Sprintf("palisade answered %d: check the URL and `Token`", status)
		}
		return &MisconfiguredError{found.Detail}
	default:
		return nil
	}
}

func refused(wire map[string]any, field, detail string) error {
	bad := BadFactsError{Field: field, Detail: detail}
	if !isFromClient(field) {
		return &bad
	}
	requestID, ok := wire["request_id"].(string)
	if !ok {
		requestID = newRequestID()
	}
	return &BadInputError{bad, badRequest(requestID, detail, field)}
}
