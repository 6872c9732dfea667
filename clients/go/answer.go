package palisade

import (
	"encoding/json"
	"sort"
	"strconv"
	"time"
)

// Decision is what to do with a request or an attempt.
type Decision string

// Every decision that Palisade makes.
const (
	Allow     Decision = "allow"
	SoftBlock Decision = "soft_block"
	HardBlock Decision = "hard_block"
	Deny      Decision = "deny"
)

// Mode says whether an answer was made in normal operation.
type Mode string

// Every mode of an answer.
const (
	Normal     Mode = "normal"
	FailClosed Mode = "fail_closed"
	FailOpen   Mode = "fail_open"
	Degraded   Mode = "degraded"
)

// Values of [Answer.DecidedBy].
const (
	ByPalisade = "palisade"
	ByClient   = "client"
)

// Reading is the state of one limit.
type Reading struct {
	Name       string `json:"name"`
	Scope      string `json:"scope"`
	Limit      int64  `json:"limit"`
	Remaining  int64  `json:"remaining"`
	Reset      int64  `json:"reset"`
	RetryAfter int64  `json:"retry_after"`
	Shadow     bool   `json:"shadow"`
}

// Reason is a rule that spoke against a request or an attempt.
type Reason struct {
	Rule       string   `json:"rule"`
	Key        string   `json:"key"`
	Decision   Decision `json:"decision"`
	Level      string   `json:"level"`
	RetryAfter int64    `json:"retry_after"`
}

// ChallengeName names a challenge. Where the policy offers one to be solved, it is its kind.
type ChallengeName string

// UnmarshalJSON reads a name, or the kind of an offered challenge.
func (c *ChallengeName) UnmarshalJSON(raw []byte) error {
	var offered struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(raw, &offered) == nil && offered.Kind != "" {
		*c = ChallengeName(offered.Kind)
		return nil
	}
	var name string
	if err := json.Unmarshal(raw, &name); err != nil {
		return err
	}
	*c = ChallengeName(name)
	return nil
}

// Answer is a decision with what to send: Status, Headers and Body are ready to copy.
type Answer struct {
	Decision  Decision `json:"decision"`
	Status    int      `json:"status"`
	RequestID string   `json:"request_id"`
	Mode      Mode     `json:"mode"`
	Level     string   `json:"level"`
	Rule      string   `json:"rule"`
	Error     string   `json:"error"`
	// RetryAfter is in seconds, 0 if the answer has none.
	RetryAfter int64 `json:"retry_after"`
	DelayMS    int64 `json:"delay_ms"`
	// Challenge is `captcha`, `out_of_band`, or the kind of one that the client can solve.
	Challenge ChallengeName `json:"challenge"`
	// Receipt gives back the charge: [Client.Refund].
	Receipt string `json:"receipt"`
	Lockout string `json:"lockout"`
	// Shadow is what a guard in shadow mode would have answered.
	Shadow  json.RawMessage   `json:"shadow"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
	Limits  []Reading         `json:"limits"`
	Reasons []Reason          `json:"reasons"`
	// DecidedBy is [ByClient] if Palisade could not be asked and [OnUnavailable] decided.
	DecidedBy string `json:"-"`
}

// Allowed is true for `allow` and nothing else.
func (a Answer) Allowed() bool { return a.Decision == Allow }

// String names the decision and its rule; receipts stay out of logs.
func (a Answer) String() string { return (&BlockedError{a}).Error() }

// GoString is String, so that no verb prints the receipt.
func (a Answer) GoString() string { return a.String() }

// parse reads an answer. One that cannot be read, or belongs to another question, counts as
// none: whatever is not clearly `allow` must never become it.
func parse(raw json.RawMessage, requestID string) (Answer, error) {
	var answer Answer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return Answer{}, &UnavailableError{"the answer cannot be read"}
	}
	switch answer.Decision {
	case Allow, SoftBlock, HardBlock, Deny:
	default:
		return Answer{}, &UnavailableError{"the answer has no decision"}
	}
	if answer.Status < 200 || answer.Status > 599 {
		return Answer{}, &UnavailableError{"the answer has no status"}
	}
	if answer.RequestID != requestID {
		return Answer{}, &UnavailableError{"the answer belongs to another request"}
	}
	switch answer.Mode {
	case FailClosed, FailOpen, Degraded:
	default:
		answer.Mode = Normal
	}
	answer.Body, answer.Shadow = notNull(answer.Body), notNull(answer.Shadow)
	answer.DecidedBy = ByPalisade
	return answer, nil
}

func notNull(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// refusal is the body of an answer that is made here.
type refusal struct {
	Error      string `json:"error"`
	Message    string `json:"message"`
	Code       string `json:"code"`
	Field      string `json:"field,omitempty"`
	RetryAfter int64  `json:"retry_after,omitempty"`
	RequestID  string `json:"request_id"`
	Timestamp  string `json:"timestamp"`
}

func (r refusal) body() json.RawMessage {
	r.Timestamp = time.Now().UTC().Format(time.RFC3339)
	// Texts and whole numbers only: this cannot fail.
	raw, _ := json.Marshal(r)
	return raw
}

// letThrough allows without Palisade.
func letThrough(mode Mode, requestID string) Answer {
	return Answer{
		Decision:  Allow,
		Status:    200,
		RequestID: requestID,
		Mode:      mode,
		Headers:   map[string]string{"X-RateLimit-Status": "degraded"},
		DecidedBy: ByClient,
	}
}

// turnAway refuses without Palisade, in the shape of its own answers during an outage.
func turnAway(mode Mode, requestID string, wait time.Duration) Answer {
	status, code := 429, "rate_limit_exceeded"
	message := "Too many requests. Please try again later."
	if mode == FailClosed {
		status, code = 503, "service_unavailable"
		message = "The request cannot be checked now. Please try again later."
	}
	seconds := int64((wait + time.Second - 1) / time.Second)
	if seconds < 1 {
		seconds = 1
	}
	return Answer{
		Decision:   Deny,
		Status:     status,
		RequestID:  requestID,
		Mode:       mode,
		Error:      code,
		RetryAfter: seconds,
		Headers: map[string]string{
			"X-RateLimit-Status": "degraded",
			"Retry-After":        strconv.FormatInt(seconds, 10),
		},
		Body: refusal{
			Error:      code,
			Message:    message,
			Code:       "throttling.enforcement_degraded",
			RetryAfter: seconds,
			RequestID:  requestID,
		}.body(),
		DecidedBy: ByClient,
	}
}

// badRequest refuses a request that cannot be read; it names the field, never its value.
func badRequest(requestID, message, field string) Answer {
	return Answer{
		Decision:  Deny,
		Status:    400,
		RequestID: requestID,
		Mode:      Normal,
		Error:     "bad_request",
		Body: refusal{
			Error:     "bad_request",
			Message:   message,
			Code:      "request.malformed",
			Field:     field,
			RequestID: requestID,
		}.body(),
		DecidedBy: ByClient,
	}
}

// mergedHeaders joins the headers of several answers about one request. Of a name that more
// than one has, the refusing answer's wins, else that of the answer whose nearest limit has the
// smallest share left (L-CONSTRAINT).
func mergedHeaders(answers []Answer) map[string]string {
	ordered := append([]Answer(nil), answers...)
	sort.SliceStable(ordered, func(i, j int) bool {
		one, other := ordered[i], ordered[j]
		if one.Allowed() != other.Allowed() {
			return one.Allowed()
		}
		return one.room() > other.room()
	})
	merged := map[string]string{}
	for _, answer := range ordered {
		for name, value := range answer.Headers {
			merged[name] = value
		}
	}
	return merged
}

// room is the smallest share that a limit has left; more than any share without limits.
func (a Answer) room() float64 {
	least := 2.0
	for _, reading := range a.Limits {
		if reading.Shadow || reading.Limit <= 0 {
			continue
		}
		if share := float64(reading.Remaining) / float64(reading.Limit); share < least {
			least = share
		}
	}
	return least
}
