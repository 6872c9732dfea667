package palisade

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Flow is what an attempt proves.
type Flow string

// A password and a one-time code.
const (
	Login Flow = "login"
	OTP   Flow = "otp"
)

// Outcome is how an attempt ended.
type Outcome string

// Every outcome. An abandoned attempt verified nothing; it weighs until it runs out (G-PENDING).
const (
	Failure   Outcome = "failure"
	Success   Outcome = "success"
	Abandoned Outcome = "abandoned"
)

const delayMax = 10 * time.Second

// Attempt may be verified now. It is a failure until it is something else.
type Attempt struct {
	// Check is what the check answered.
	Check Answer
	// Outcome is reported when the attempt ends.
	Outcome Outcome
	// Reported is what the report was answered; nil if it was lost or nothing was reported.
	Reported *Answer
}

// RequestID joins the check and the outcome.
func (a *Attempt) RequestID() string { return a.Check.RequestID }

// Success says that the credential was right.
func (a *Attempt) Success() { a.Outcome = Success }

// Failure says that the credential was wrong.
func (a *Attempt) Failure() { a.Outcome = Failure }

// Abandon says that nothing was verified.
func (a *Attempt) Abandon() { a.Outcome = Abandoned }

// Guard asks before a credential is verified and says afterwards how it went.
type Guard struct {
	client *Client
	choice OnUnavailable
}

// Guard protects logins and one-time codes.
func (c *Client) Guard(choice OnUnavailable) (*Guard, error) {
	if err := requireChoice(choice); err != nil {
		return nil, err
	}
	return &Guard{client: c, choice: choice}, nil
}

// Verify checks a credential and tells the attempt if it was right.
type Verify func(ctx context.Context, attempt *Attempt) error

// Login protects a password. The error is a [*BlockedError] if it may not be verified now.
//
// Only [Attempt.Success] is a success. Whatever else ends verify, a return, an error or a panic,
// is reported as a failure, also if the client hangs up: otherwise an attacker would look for
// the way out that is not counted.
func (g *Guard) Login(ctx context.Context, facts AttemptFacts, verify Verify) (*Attempt, error) {
	return g.attempt(ctx, Login, facts, verify)
}

// OTP protects a one-time code, more strictly than [Guard.Login].
func (g *Guard) OTP(ctx context.Context, facts AttemptFacts, verify Verify) (*Attempt, error) {
	return g.attempt(ctx, OTP, facts, verify)
}

func (g *Guard) attempt(
	ctx context.Context, flow Flow, facts AttemptFacts, verify Verify,
) (attempt *Attempt, err error) {
	answer, err := g.Check(ctx, flow, facts)
	if err != nil {
		return nil, err
	}
	if !answer.Allowed() {
		return nil, &BlockedError{answer}
	}
	facts.RequestID = answer.RequestID
	attempt = &Attempt{Check: answer, Outcome: Failure}
	// Deferred: a panic is an outcome too.
	defer func() {
		if attempt.Outcome == Abandoned {
			return
		}
		reported, lost := g.Report(ctx, flow, attempt.Outcome, facts)
		if lost == nil {
			attempt.Reported = &reported
		} else if err == nil && !isUnavailable(lost) {
			err = lost
		}
	}()
	return attempt, verify(ctx, attempt)
}

// Check is only the first half of an attempt, for a host that spreads one over two requests. The
// RequestID of its answer belongs into the facts of [Guard.Report]. A refusal is held back as long
// as it asks for.
func (g *Guard) Check(ctx context.Context, flow Flow, facts AttemptFacts) (Answer, error) {
	path := "/v1/guard/" + string(flow) + "/check"
	answer, err := g.client.decide(ctx, path, facts.question(), g.choice)
	if err == nil && !answer.Allowed() {
		pause(ctx, answer)
	}
	return answer, err
}

// Report is only the outcome. It is sent even if the context has ended, and twice if it must
// and the deadline of the first try allows: the second time changes nothing where the first one
// arrived. The error is an [*UnavailableError] if it could not be reported.
func (g *Guard) Report(ctx context.Context, flow Flow, outcome Outcome, facts AttemptFacts) (Answer, error) {
	if outcome != Success && outcome != Failure {
		return Answer{}, &BadFactsError{"outcome", "`outcome` must be `Success` or `Failure`"}
	}
	if facts.RequestID == "" {
		return Answer{}, &BadFactsError{"request_id", "`request_id` must be that of the check"}
	}
	q, path := facts.question(), "/v1/guard/"+string(flow)+"/"+string(outcome)
	always := detached{ctx}
	bounded, cancel := context.WithTimeout(always, g.client.deadline)
	defer cancel()
	var err error
	for tries := 0; tries < 2; tries++ {
		var answer Answer
		if answer, err = g.report(always, bounded, path, q); err == nil {
			if outcome == Failure {
				pause(ctx, answer)
			}
			return answer, nil
		}
		if !isUnavailable(err) {
			return Answer{}, err
		}
	}
	g.client.log("the " + string(outcome) + " of a " + string(flow) + " attempt could not be reported")
	return Answer{}, err
}

func (g *Guard) report(ctx, bounded context.Context, path string, q question) (Answer, error) {
	raw, err := g.client.askBy(ctx, bounded, http.MethodPost, path, q.wire)
	if err != nil {
		return Answer{}, err
	}
	return parse(raw, q.requestID)
}

// IssueSession makes a session id to keep in a cookie of a device that has just logged in.
func (g *Guard) IssueSession(ctx context.Context, account string) (string, error) {
	wire := map[string]any{"account": account}
	raw, err := g.client.ask(ctx, http.MethodPost, "/v1/guard/sessions", wire)
	if err != nil {
		return "", err
	}
	var found struct {
		SessionID string `json:"session_id"`
	}
	if json.Unmarshal(raw, &found) != nil || found.SessionID == "" {
		return "", &UnavailableError{"the answer has no session"}
	}
	return found.SessionID, nil
}

// RevokeSession revokes one session of an account; how many there were.
func (g *Guard) RevokeSession(ctx context.Context, account, sessionID string) (int, error) {
	return g.revoke(ctx, map[string]any{"account": account, "session_id": sessionID})
}

// RevokeSessions revokes all sessions of an account; how many there were.
func (g *Guard) RevokeSessions(ctx context.Context, account string) (int, error) {
	return g.revoke(ctx, map[string]any{"account": account})
}

func (g *Guard) revoke(ctx context.Context, wire map[string]any) (int, error) {
	raw, err := g.client.ask(ctx, http.MethodDelete, "/v1/guard/sessions", wire)
	if err != nil {
		return 0, err
	}
	var found struct {
		Revoked int `json:"revoked"`
	}
	if json.Unmarshal(raw, &found) != nil {
		return 0, &UnavailableError{"the answer cannot be read"}
	}
	return found.Revoked, nil
}

// pause is the growing delay before a refusal (A-BACKOFF); nobody waits for a client that is
// gone.
func pause(ctx context.Context, answer Answer) {
	delay := time.Duration(answer.DelayMS) * time.Millisecond
	if answer.DelayMS > delayMax.Milliseconds() {
		delay = delayMax
	}
	if delay <= 0 {
		return
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
