// Package palisadetest has a test double of a Palisade server, for tests of your application.
package palisadetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	palisade "example.com/palisade/clients/go"
)

// Op is what is asked: a request, a job, a step of an attempt, a call of a heavy endpoint.
type Op string

// Every operation that can be refused.
const (
	Request      Op = "request"
	JobEnqueue   Op = "job.enqueue"
	LoginCheck   Op = "login.check"
	LoginFailure Op = "login.failure"
	LoginSuccess Op = "login.success"
	OTPCheck     Op = "otp.check"
	OTPFailure   Op = "otp.failure"
	OTPSuccess   Op = "otp.success"
	APIHit       Op = "api.hit"
	Reserve      Op = "reserve"
	Extend       Op = "extend"
	Settle       Op = "settle"
	Release      Op = "release"
)

// Facts are named as on the wire.
type Facts map[string]any

// Question is one question with its facts as they were sent.
type Question struct {
	Op    Op
	Facts Facts
}

// Refusal says which questions are refused, and how.
type Refusal struct {
	// Facts that a question must have to be refused; any question of its kind if nil.
	Facts Facts
	// Decision is [palisade.Deny] if empty.
	Decision palisade.Decision
	// RetryAfter is 60 seconds if 0.
	RetryAfter time.Duration
	// After lets so many of these questions pass first.
	After int
}

// Fake is a [palisade.Client] without the network. Everything else is the real client. It
// allows everything until it is told otherwise, and remembers what it was asked.
type Fake struct {
	// Client is what your application uses.
	Client *palisade.Client

	lock         sync.Mutex
	asked        []Question
	refusals     []*scripted
	reservations reservations
	away         bool
}

type scripted struct {
	op Op
	Refusal
}

// New makes a test double.
func New() *Fake {
	fake := &Fake{reservations: reservations{}}
	client, err := palisade.New("http://palisade.test", palisade.Options{
		Transport: transport{fake},
		// Nothing here waits for anything, however busy the machine is.
		Deadline: time.Hour,
		Log:      func(string) {},
	})
	if err != nil {
		panic("palisadetest: " + err.Error())
	}
	fake.Client = client
	return fake
}

// Refuse refuses questions of this kind from now on, with 429.
func (f *Fake) Refuse(op Op, refusal Refusal) {
	if refusal.Decision == "" {
		refusal.Decision = palisade.Deny
	}
	if refusal.RetryAfter == 0 {
		refusal.RetryAfter = time.Minute
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	f.refusals = append(f.refusals, &scripted{op, refusal})
}

// GoAway begins an outage: [palisade.OnUnavailable] decides.
func (f *Fake) GoAway() { f.setAway(true) }

// ComeBack ends it.
func (f *Fake) ComeBack() { f.setAway(false) }

func (f *Fake) setAway(away bool) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.away = away
}

// Expire ends what is reserved so far: extensions say so.
func (f *Fake) Expire() {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.reservations.expire()
}

// Asked is every question, in its order.
func (f *Fake) Asked() []Question {
	f.lock.Lock()
	defer f.lock.Unlock()
	return append([]Question(nil), f.asked...)
}

// Ops is what was asked, without the facts.
func (f *Fake) Ops() []Op {
	var ops []Op
	for _, question := range f.Asked() {
		ops = append(ops, question.Op)
	}
	return ops
}

// transport is the fake in the place of the network.
type transport struct{ fake *Fake }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	defer request.Body.Close()
	var facts Facts
	if err := json.NewDecoder(request.Body).Decode(&facts); err != nil {
		return nil, err
	}
	value, err := t.fake.answer(request.URL.Path, facts)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(bytes.NewReader(body)),
		Request:    request,
	}, nil
}

func (f *Fake) answer(path string, facts Facts) (any, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.away {
		return nil, errors.New("the test double has gone away")
	}
	switch path {
	case "/v1/batch":
		checks, _ := facts["checks"].([]any)
		answers := make([]any, len(checks))
		for index, each := range checks {
			check, _ := each.(map[string]any)
			answers[index] = f.decided("/v1/check", check)
		}
		return map[string]any{"answers": answers}, nil
	case "/v1/refund":
		return map[string]any{"refunded": true}, nil
	case "/v1/guard/sessions":
		return map[string]any{"session_id": fmt.Sprint("session-", facts["account"]), "revoked": 1}, nil
	default:
		return f.decided(path, facts), nil
	}
}

func (f *Fake) decided(path string, facts Facts) map[string]any {
	question := Question{Op: op(path, facts), Facts: facts}
	f.asked = append(f.asked, question)
	answer := map[string]any{"decision": "allow", "status": 200, "request_id": facts["request_id"]}
	if question.Op == JobEnqueue || facts["receipt"] == true {
		answer["receipt"] = fmt.Sprint("receipt-", len(f.asked))
	}
	// Every refusal counts the question, the first one that refuses it answers.
	refused := false
	for _, refusal := range f.refusals {
		if refusal.takes(question) && !refused {
			refused = true
			refusal.write(answer)
		}
	}
	return f.reservations.join(question, answer)
}

func op(path string, facts Facts) Op {
	if step := strings.TrimPrefix(path, "/v1/guard/"); step != path {
		return Op(strings.ReplaceAll(step, "/", "."))
	}
	switch step := Op(strings.TrimPrefix(path, "/v1/")); step {
	case Reserve, Extend, Settle, Release:
		return step
	}
	if named, ok := facts["op"].(string); ok {
		return Op(named)
	}
	return Request
}

// takes is true if the refusal is for this question; the first After of them pass.
func (s *scripted) takes(question Question) bool {
	if question.Op != s.op {
		return false
	}
	for name, value := range s.Facts {
		if !same(question.Facts[name], value) {
			return false
		}
	}
	s.After--
	return s.After < 0
}

// same compares as JSON does: a whole number that was sent is a float64 here.
func same(sent, wanted any) bool {
	raw, err := json.Marshal(wanted)
	if err != nil {
		return false
	}
	var plain any
	return json.Unmarshal(raw, &plain) == nil && reflect.DeepEqual(sent, plain)
}

func (s *scripted) write(answer map[string]any) {
	seconds := int64((s.RetryAfter + time.Second - 1) / time.Second)
	answer["decision"], answer["status"] = s.Decision, http.StatusTooManyRequests
	answer["error"], answer["retry_after"] = "rate_limit_exceeded", seconds
	answer["headers"] = map[string]string{"Retry-After": strconv.FormatInt(seconds, 10)}
	answer["body"] = map[string]any{
		"error":       "rate_limit_exceeded",
		"message":     "Too many requests. Please try again later.",
		"retry_after": seconds,
		"request_id":  answer["request_id"],
	}
}
