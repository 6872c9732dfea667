package palisade

import (
	"context"
	"encoding/json"
	"net/http"
)

// Costs are amounts by unit: `Costs{"requests": 1, "tokens": 4000}`.
type Costs map[string]int64

// Terms say how a reservation is asked for. The zero value is one request for 60 seconds.
type Terms struct {
	// Costs is what the work may cost at most, by unit; one request if it is nil.
	Costs Costs
	// Hold is how long the reservation lasts unless it is extended: "90s". 60 seconds if empty.
	Hold string
	// AtMost takes what is left instead of a refusal.
	AtMost bool
}

// HeldReservation is a reservation that is held. Token is sealed: any node takes it.
type HeldReservation struct {
	Token string `json:"reservation"`
	// ExpiresIn is in whole seconds.
	ExpiresIn int64  `json:"expires_in"`
	ExpiresAt string `json:"expires_at"`
	Reserved  Costs  `json:"reserved"`
}

// String keeps the token out of logs.
func (HeldReservation) String() string { return "palisade.HeldReservation" }

// GoString is String, so that no verb prints the token.
func (HeldReservation) GoString() string { return "palisade.HeldReservation" }

// Extension is the answer to [Client.Extend]. If it is not Allowed, the reservation stays as it
// was, unless it has Expired or was Settled before.
type Extension struct {
	Allowed bool
	Expired bool
	// Held is nil where nothing is held any more.
	Held *HeldReservation
	// RetryAfter is in seconds, 0 if the answer has none.
	RetryAfter int64
	Error      string
	Settled    *Settlement
}

// Settlement is the answer to a settle or a release; a second one gets the first answer again.
type Settlement struct {
	// Recorded is false while the store is away: the server tries again by itself.
	Recorded bool `json:"recorded"`
	// Late is true if it came too late to change anything.
	Late     bool  `json:"late"`
	Used     Costs `json:"used"`
	Reserved Costs `json:"reserved"`
	// Over is what was used beyond what was reserved.
	Over Costs `json:"over"`
}

// ReserveOnly asks for a reservation and leaves the rest to the caller: [Client.Extend],
// [Client.Settle], [Client.Release]. What is held is nil if the answer is a refusal, and if
// Palisade could not be asked and choice let the work through.
//
// The server answers a repeated id with the reservation that it gave before, and one request may
// reserve more than once: each reservation has an id of its own, and the facts' id is sent as the
// correlation id.
func (c *Client) ReserveOnly(
	ctx context.Context, facts CheckFacts, terms Terms, choice OnUnavailable,
) (Answer, *HeldReservation, error) {
	if err := requireChoice(choice); err != nil {
		return Answer{}, nil, err
	}
	q := facts.check()
	if _, named := q.wire["correlation_id"]; !named {
		q.wire["correlation_id"] = q.requestID
	}
	q.requestID = newRequestID()
	q.wire["request_id"] = q.requestID
	terms.addTo(q.wire)
	raw, err := c.ask(ctx, http.MethodPost, "/v1/reserve", q.wire)
	var answer Answer
	if err == nil {
		answer, err = parse(raw, q.requestID)
	}
	if isUnavailable(err) {
		return choice.decide(q), nil, nil
	}
	if err == nil {
		err = known(answer, q, "class")
	}
	if err != nil || !answer.Allowed() {
		return answer, nil, err
	}
	return answer, held(raw), nil
}

// Extend asks for more cost, a later end, or both. The error is an [*UnavailableError] if nobody
// could be asked.
func (c *Client) Extend(ctx context.Context, token string, more Terms) (Extension, error) {
	more.AtMost = false
	raw, err := c.followUp(ctx, ctx, "/v1/extend", token, more)
	if err != nil {
		return Extension{}, err
	}
	var found struct {
		Decision   Decision        `json:"decision"`
		Expired    bool            `json:"expired"`
		RetryAfter int64           `json:"retry_after"`
		Error      string          `json:"error"`
		Settled    json.RawMessage `json:"settled"`
	}
	if json.Unmarshal(raw, &found) != nil || (found.Decision != Allow && found.Decision != Deny) {
		return Extension{}, &UnavailableError{"the answer has no decision"}
	}
	extension := Extension{
		Allowed:    found.Decision == Allow,
		Expired:    found.Expired,
		Held:       held(raw),
		RetryAfter: found.RetryAfter,
		Error:      found.Error,
	}
	if first := notNull(found.Settled); first != nil {
		settled, err := settlement(first)
		if err != nil {
			return Extension{}, err
		}
		extension.Settled = &settled
	}
	return extension, nil
}

// Settle says what was really used; a unit that costs do not name was used as reserved. The error
// is an [*UnavailableError] if nobody could be asked.
func (c *Client) Settle(ctx context.Context, token string, costs Costs) (Settlement, error) {
	if costs == nil {
		costs = Costs{}
	}
	return c.settle(ctx, ctx, "/v1/settle", token, Terms{Costs: costs})
}

// Release says that nothing was used.
func (c *Client) Release(ctx context.Context, token string) (Settlement, error) {
	return c.settle(ctx, ctx, "/v1/release", token, Terms{})
}

func (c *Client) settle(
	ctx, bounded context.Context, path, token string, terms Terms,
) (Settlement, error) {
	raw, err := c.followUp(ctx, bounded, path, token, terms)
	if err != nil {
		return Settlement{}, err
	}
	return settlement(raw)
}

// followUp asks about a reservation that is there.
func (c *Client) followUp(
	ctx, bounded context.Context, path, token string, terms Terms,
) (json.RawMessage, error) {
	requestID := newRequestID()
	wire := map[string]any{"reservation": token, "request_id": requestID}
	terms.addTo(wire)
	within, cancel := context.WithTimeout(bounded, c.deadline)
	defer cancel()
	raw, err := c.askBy(ctx, within, http.MethodPost, path, wire)
	if err != nil {
		return nil, err
	}
	var found struct {
		RequestID string `json:"request_id"`
	}
	if json.Unmarshal(raw, &found) != nil || found.RequestID != requestID {
		return nil, &UnavailableError{"the answer belongs to another request"}
	}
	return raw, nil
}

func (t Terms) addTo(wire map[string]any) {
	if t.Costs != nil {
		wire["costs"] = map[string]int64(t.Costs)
	}
	if t.Hold != "" {
		wire["hold"] = t.Hold
	}
	if t.AtMost {
		wire["at_most"] = true
	}
}

// held reads what an answer says is held; nil if it holds nothing.
func held(raw json.RawMessage) *HeldReservation {
	var found HeldReservation
	if json.Unmarshal(raw, &found) != nil || found.Token == "" {
		return nil
	}
	return &found
}

func settlement(raw json.RawMessage) (Settlement, error) {
	var found struct {
		Settlement
		Recorded *bool `json:"recorded"`
	}
	if json.Unmarshal(raw, &found) != nil || found.Recorded == nil {
		return Settlement{}, &UnavailableError{"the answer is not that of a settle"}
	}
	found.Settlement.Recorded = *found.Recorded
	return found.Settlement, nil
}
