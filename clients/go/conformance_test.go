package palisade_test

// The behaviours that every client has.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	palisade "example.com/palisade/clients/go"
)

const callerToken = "a-token-that-callers-show-0123456789"

type object = map[string]any

type conformanceStep struct {
	Do                string
	Facts             any
	End               string
	OnUnavailable     string `json:"on_unavailable"`
	Repeat            int
	ConnectionsAtMost int   `json:"connections_at_most"`
	AtLeastMS         int64 `json:"at_least_ms"`
	AtMostMS          int64 `json:"at_most_ms"`
	Expect            any
}

type conformanceCase struct {
	Name       string
	Server     string
	Token      string
	DeadlineMS int64 `json:"deadline_ms"`
	Caps       *struct {
		PerKey   int   `json:"per_key"`
		Total    int   `json:"total"`
		WindowMS int64 `json:"window_ms"`
	}
	Hidden []string
	Steps  []conformanceStep
}

func TestConformance(t *testing.T) {
	home := folder("PALISADE_CONFORMANCE", "../conformance")
	raw, err := os.ReadFile(filepath.Join(home, "cases.json"))
	must(t, err)
	var list struct {
		Policy string
		Cases  []conformanceCase
	}
	must(t, json.Unmarshal(raw, &list))
	urls := map[string]string{}
	command := exec.Command("python3", filepath.Join(home, "misbehaving.py"))
	line := started(t, command, func(string) bool { return true })
	must(t, json.Unmarshal([]byte(line), &urls))
	urls["palisade"] = serve(t, list.Policy)
	urls["palisade_with_token"] = serve(t, "[server]\ncaller_token = \"env:CALLER\"\n", "CALLER="+callerToken)
	if len(list.Cases) < 40 {
		t.Fatal("the cases were not found")
	}
	for _, each := range list.Cases {
		t.Run(each.Name, func(t *testing.T) { play(t, each, urls[each.Server]) })
	}
}

func play(t *testing.T, one conformanceCase, url string) {
	client := newClient(t, url, func(options *palisade.Options) {
		options.Token = one.Token
		if one.DeadlineMS > 0 {
			options.Deadline = time.Duration(one.DeadlineMS) * time.Millisecond
		}
	})
	choices := map[string]palisade.OnUnavailable{"": palisade.Closed, "closed": palisade.Closed, "open": palisade.Open}
	if one.Caps != nil {
		window := time.Duration(one.Caps.WindowMS) * time.Millisecond
		choices["caps"] = &palisade.Caps{PerKey: one.Caps.PerKey, Total: one.Caps.Total, Window: window}
	}
	bound, receipt := map[string]any{}, ""
	for number, step := range one.Steps {
		for times := 0; times == 0 || times < step.Repeat; times++ {
			where := fmt.Sprintf("step %d", number)
			began := time.Now()
			result := plain(t, played(t, client, url, step, receipt, choices[step.OnUnavailable]))
			took := time.Since(began).Milliseconds()
			partOf(t, step.Expect, result, bound, where)
			if took < step.AtLeastMS || (step.AtMostMS > 0 && took > step.AtMostMS) {
				t.Fatalf("%s took %d ms", where, took)
			}
			if step.ConnectionsAtMost > 0 && connectionsOf(result) > step.ConnectionsAtMost {
				t.Fatalf("%s: %d connections", where, connectionsOf(result))
			}
			if found, ok := result.(object); ok {
				receipt, _ = found["receipt"].(string)
			}
			said, _ := json.Marshal(result)
			for _, hidden := range one.Hidden {
				if strings.Contains(string(said), hidden) {
					t.Fatalf("%s says what is hidden", where)
				}
			}
		}
	}
}

func played(
	t *testing.T, client *palisade.Client, url string, step conformanceStep, receipt string,
	choice palisade.OnUnavailable,
) any {
	ctx := context.Background()
	facts, _ := written(step.Facts).(object)
	switch step.Do {
	case "asked":
		return askedOf(t, url)
	case "check":
		answer, err := client.Check(ctx, checkFacts(facts), choice)
		return resultOf(t, answer, err)
	case "peek":
		answer, err := client.Peek(ctx, checkFacts(facts), choice)
		return resultOf(t, answer, err)
	case "api_hit":
		answer, err := client.APIHit(ctx, palisade.HitFacts{IP: text(facts["ip"])}, choice)
		return resultOf(t, answer, err)
	case "batch":
		return batchOf(t, client, step, choice)
	case "refund":
		refunded, err := client.Refund(ctx, receipt)
		return ifNo(t, err, object{"is": "answer", "refunded": refunded})
	case "issue_session":
		guard, err := client.Guard(choice)
		must(t, err)
		session, err := guard.IssueSession(ctx, text(facts["account"]))
		return ifNo(t, err, object{"is": "answer", "session": session != ""})
	default:
		return attempted(t, client, step, facts, choice)
	}
}

func attempted(
	t *testing.T, client *palisade.Client, step conformanceStep, facts object, choice palisade.OnUnavailable,
) any {
	guard, err := client.Guard(choice)
	must(t, err)
	flow := map[string]func(context.Context, palisade.AttemptFacts, palisade.Verify) (*palisade.Attempt, error){
		"login": guard.Login, "otp": guard.OTP,
	}[step.Do]
	end := func(_ context.Context, attempt *palisade.Attempt) error {
		switch step.End {
		case "success":
			attempt.Success()
		case "abandon":
			attempt.Abandon()
		}
		return nil
	}
	attempt, err := flow(context.Background(), attemptFacts(facts), end)
	if err != nil {
		return ofError(t, err)
	}
	result := ofAnswer(attempt.Check)
	if step.End != "abandon" {
		result["reported"] = attempt.Reported != nil
	}
	return result
}

func batchOf(t *testing.T, client *palisade.Client, step conformanceStep, choice palisade.OnUnavailable) any {
	var checks []palisade.CheckFacts
	for _, each := range step.Facts.([]any) {
		checks = append(checks, checkFacts(written(each).(object)))
	}
	answers, err := client.Batch(context.Background(), checks, choice)
	var results []any
	for _, answer := range answers {
		results = append(results, ofAnswer(answer))
	}
	return ifNo(t, err, object{"is": "answer", "answers": results})
}

func askedOf(t *testing.T, url string) any {
	response, err := http.Get(url + "/asked")
	must(t, err)
	defer response.Body.Close()
	var asked any
	must(t, json.NewDecoder(response.Body).Decode(&asked))
	return asked
}

// written is a value of the list with `$repeat` written out.
func written(value any) any {
	switch value := value.(type) {
	case object:
		if repeat, ok := value["$repeat"].([]any); ok {
			return strings.Repeat(repeat[0].(string), int(repeat[1].(float64)))
		}
		whole := object{}
		for name, each := range value {
			whole[name] = written(each)
		}
		return whole
	default:
		return value
	}
}

func text(value any) string {
	found, _ := value.(string)
	return found
}

func checkFacts(facts object) palisade.CheckFacts {
	var cost *int
	if given, ok := facts["cost"].(float64); ok {
		cost = palisade.Cost(int(given))
	}
	if facts["op"] == "job.enqueue" {
		return palisade.JobFacts{
			Org: text(facts["org"]), Token: text(facts["token"]), Class: text(facts["class"]), Cost: cost,
		}
	}
	request := palisade.RequestFacts{
		IP: text(facts["ip"]), Method: text(facts["method"]), Path: text(facts["path"]),
		Layers: palisade.Layers(text(facts["layers"])), Class: text(facts["class"]),
		UserAgent: text(facts["user_agent"]), Org: text(facts["org"]), User: text(facts["user"]),
		Token: text(facts["token"]), APIKey: text(facts["api_key"]), Cost: cost,
		Receipt: facts["receipt"] == true, RequestID: text(facts["request_id"]),
	}
	if scopes, ok := facts["scopes"].([]any); ok {
		for _, scope := range scopes {
			request.Scopes = append(request.Scopes, text(scope))
		}
	}
	if client, ok := facts["client"].(object); ok {
		request.Client = &palisade.OAuthClient{ID: text(client["id"]), Type: text(client["type"])}
	}
	return request
}

func attemptFacts(facts object) palisade.AttemptFacts {
	_, named := facts["username"]
	device, _ := facts["device"].(object)
	var known *bool
	if given, ok := device["known"].(bool); ok {
		known = palisade.Bool(given)
	}
	return palisade.AttemptFacts{
		IP: text(facts["ip"]), Account: text(facts["account"]), Username: text(facts["username"]),
		NoUsername: !named, UserAgent: text(facts["user_agent"]),
		AcceptLanguage: text(facts["accept_language"]), CorrelationID: text(facts["correlation_id"]),
		Device: palisade.Device{ClientID: text(device["client_id"]), Known: known},
	}
}

func ofAnswer(answer palisade.Answer) object {
	return object{
		"is": "answer", "decision": answer.Decision, "status": answer.Status, "mode": answer.Mode,
		"rule": answer.Rule, "error": answer.Error, "decided_by": answer.DecidedBy,
		"request_id": answer.RequestID, "receipt": answer.Receipt, "headers": answer.Headers,
		"body": answer.Body,
	}
}

func resultOf(t *testing.T, answer palisade.Answer, err error) any {
	return ifNo(t, err, ofAnswer(answer))
}

func ifNo(t *testing.T, err error, result object) any {
	if err != nil {
		return ofError(t, err)
	}
	return result
}

func ofError(t *testing.T, err error) any {
	var blocked *palisade.BlockedError
	var input *palisade.BadInputError
	var facts *palisade.BadFactsError
	var setUp *palisade.MisconfiguredError
	var unavailable *palisade.UnavailableError
	result := object{"says": err.Error(), "shows": fmt.Sprintf("%v %+v %#v", err, err, err)}
	switch {
	case errors.As(err, &blocked):
		result = ofAnswer(blocked.Answer)
		result["is"] = "blocked"
	case errors.As(err, &input):
		says := result["says"]
		result = ofAnswer(input.Answer)
		result["is"], result["field"], result["says"] = "bad_input", input.Field, says
	case errors.As(err, &facts):
		result["is"], result["field"] = "bad_facts", facts.Field
	case errors.As(err, &setUp):
		result["is"] = "misconfigured"
	case errors.As(err, &unavailable):
		result["is"] = "unavailable"
	default:
		t.Fatal(err)
	}
	return result
}

// plain is a result as the list would spell it.
func plain(t *testing.T, result any) any {
	raw, err := json.Marshal(result)
	must(t, err)
	var found any
	must(t, json.Unmarshal(raw, &found))
	return found
}

func connectionsOf(result any) int {
	used := map[any]bool{}
	for _, each := range result.([]any) {
		used[each.(object)["connection"]] = true
	}
	return len(used)
}

// partOf fails unless everything expected was found.
func partOf(t *testing.T, expected, found any, bound map[string]any, where string) {
	t.Helper()
	switch expected := expected.(type) {
	case object:
		inside, ok := found.(object)
		if !ok {
			t.Fatalf("%s: %v is no object", where, found)
		}
		for name, each := range expected {
			partOf(t, each, inside[name], bound, where+"."+name)
		}
	case []any:
		inside, ok := found.([]any)
		if !ok || len(inside) != len(expected) {
			t.Fatalf("%s: %v", where, found)
		}
		for index, each := range expected {
			partOf(t, each, inside[index], bound, fmt.Sprintf("%s[%d]", where, index))
		}
	case string:
		if expected == "*" && found != nil && found != "" {
			return
		}
		if strings.HasPrefix(expected, "$") {
			if _, known := bound[expected]; !known {
				bound[expected] = found
			}
			if found == nil || bound[expected] != found {
				t.Fatalf("%s: %v", where, found)
			}
			return
		}
		if expected != found {
			t.Fatalf("%s: %v is not %v", where, found, expected)
		}
	default:
		if expected != found {
			t.Fatalf("%s: %v is not %v", where, found, expected)
		}
	}
}
