package palisade_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	url_ "net/url"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	palisade "example.com/palisade/clients/go"
	"example.com/palisade/clients/go/palisadetest"
)

const budgets = `
[policy]
defaults = false

[[limit]]
name = "requests-per-org"
by = ["org"]
rate = "60/h"

[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10_000/h"
unit = "tokens"

[[limit]]
name = "calls-in-progress"
by = ["org"]
concurrency = 2
hold = "2s"
`

var estimate = palisade.Costs{"requests": 1, "tokens": 4000}

func chat(org string) palisade.RequestFacts {
	return palisade.RequestFacts{IP: "203.0.113.5", Method: "POST", Path: "/v1/chat", Org: org}
}

// left is what an organisation has left: what a reservation of all that is left takes.
func left(t *testing.T, client *palisade.Client, org string) int64 {
	t.Helper()
	all := palisade.Terms{Costs: palisade.Costs{"tokens": 10_000}, AtMost: true}
	_, held, err := client.ReserveOnly(context.Background(), chat(org), all, palisade.Closed)
	must(t, err)
	if held == nil {
		t.Fatal("nothing is left")
	}
	_, err = client.Release(context.Background(), held.Token)
	must(t, err)
	return held.Reserved["tokens"]
}

func TestWorkIsSettledByWhatItSaid(t *testing.T) {
	client := newClient(t, serve(t, budgets))
	cases := map[string]struct {
		said  palisade.Costs
		left  int64
		over  palisade.Costs
		fails error
	}{
		"less":    {said: palisade.Costs{"tokens": 812}, left: 9188, over: palisade.Costs{}},
		"more":    {said: palisade.Costs{"tokens": 6000}, left: 4000, over: palisade.Costs{"tokens": 2000}},
		"nothing": {left: 6000, over: palisade.Costs{}},
		"error":   {left: 6000, over: palisade.Costs{}, fails: errors.New("broken")},
	}
	for name, each := range cases {
		work := func(_ context.Context, r *palisade.Reservation) error {
			if !reflect.DeepEqual(r.Reserved(), estimate) || r.Expired() {
				t.Errorf("%s: %v", name, r.Reserved())
			}
			if each.said != nil {
				must(t, r.Used(each.said))
			}
			return each.fails
		}
		terms := palisade.Terms{Costs: estimate, Hold: "60s"}
		r, err := client.Reserve(context.Background(), chat(name), terms, palisade.Closed, work)
		if !errors.Is(err, each.fails) || r.Settled == nil || !r.Settled.Recorded || r.Settled.Late {
			t.Fatalf("%s: %v %+v", name, err, r.Settled)
		}
		if !reflect.DeepEqual(r.Settled.Over, each.over) || left(t, client, name) != each.left {
			t.Errorf("%s: %+v, %d left", name, r.Settled, left(t, client, name))
		}
	}
}

func TestOnlyAReleaseGivesEverythingBack(t *testing.T) {
	client := newClient(t, serve(t, budgets))
	terms := palisade.Terms{Costs: estimate}
	_, err := client.Reserve(context.Background(), chat("acme"), terms, palisade.Closed,
		func(_ context.Context, r *palisade.Reservation) error {
			must(t, r.Used(palisade.Costs{"tokens": 7}))
			r.Release()
			return nil
		})
	must(t, err)
	func() {
		defer func() { _ = recover() }()
		_, _ = client.Reserve(context.Background(), chat("panics"), terms, palisade.Closed,
			func(context.Context, *palisade.Reservation) error { panic("broken") })
	}()
	if got := [2]int64{left(t, client, "acme"), left(t, client, "panics")}; got != [2]int64{10_000, 6000} {
		t.Fatal(got)
	}
}

func TestWorkThatOutlivesItsHoldIsExtended(t *testing.T) {
	client := newClient(t, serve(t, budgets))
	terms := palisade.Terms{Costs: estimate, Hold: "1s"}
	r, err := client.Reserve(context.Background(), chat("acme"), terms, palisade.Closed,
		func(_ context.Context, r *palisade.Reservation) error {
			select {
			case <-r.Done():
				t.Error("it has ended")
			case <-time.After(2500 * time.Millisecond):
			}
			return r.Used(palisade.Costs{"tokens": 812})
		})
	must(t, err)
	if r.Settled == nil || r.Settled.Late || r.Settled.Used["tokens"] != 812 {
		t.Fatalf("%+v", r.Settled)
	}
}

func TestARefusedReservationDoesNoWork(t *testing.T) {
	client := newClient(t, serve(t, budgets))
	terms := palisade.Terms{Costs: palisade.Costs{"tokens": 9000}}
	hold := func(work func(context.Context, *palisade.Reservation) error) error {
		_, err := client.Reserve(context.Background(), chat("acme"), terms, palisade.Closed, work)
		return err
	}
	err := hold(func(context.Context, *palisade.Reservation) error {
		return hold(func(context.Context, *palisade.Reservation) error { t.Error("it is done"); return nil })
	})
	var blocked *palisade.BlockedError
	if !errors.As(err, &blocked) || blocked.Answer.Status != 429 || blocked.Answer.RetryAfter == 0 {
		t.Fatal(err)
	}
}

func TestMoreIsReservedWhileWorkGoesOn(t *testing.T) {
	client := newClient(t, serve(t, budgets))
	_, err := client.Reserve(context.Background(), chat("acme"), palisade.Terms{Costs: estimate}, palisade.Closed,
		func(ctx context.Context, r *palisade.Reservation) error {
			more, err := r.Extend(ctx, palisade.Terms{Costs: palisade.Costs{"tokens": 1000}})
			must(t, err)
			tooMuch, err := r.Extend(ctx, palisade.Terms{Costs: palisade.Costs{"tokens": 9000}})
			must(t, err)
			if !more.Allowed || tooMuch.Allowed || tooMuch.Error == "" || r.Reserved()["tokens"] != 5000 {
				t.Errorf("%+v %+v %v", more, tooMuch, r.Reserved())
			}
			return nil
		})
	must(t, err)
}

func TestTwoReservationsOfOneRequestAreTwo(t *testing.T) {
	fake, facts := palisadetest.New(), chat("acme")
	facts.RequestID = "r1"
	tokens := map[string]bool{}
	for range [2]int{} {
		_, held, err := fake.Client.ReserveOnly(context.Background(), facts, palisade.Terms{}, palisade.Closed)
		must(t, err)
		tokens[held.Token] = true
	}
	ids := map[any]bool{}
	for _, asked := range fake.Asked() {
		ids[asked.Facts["request_id"]] = true
		if asked.Facts["correlation_id"] != "r1" {
			t.Error(asked.Facts)
		}
	}
	if len(tokens) != 2 || len(ids) != 2 || ids["r1"] {
		t.Fatal(tokens, ids)
	}
}

func TestWrongAmountsAreNamed(t *testing.T) {
	fake := palisadetest.New()
	_, err := fake.Client.Reserve(context.Background(), chat("acme"), palisade.Terms{Costs: estimate}, palisade.Open,
		func(_ context.Context, r *palisade.Reservation) error {
			for _, costs := range []palisade.Costs{{"tokens": -1}, {"tokens": 1<<47 + 1}, {"euros": 1}} {
				var bad *palisade.BadFactsError
				if err := r.Used(costs); !errors.As(err, &bad) || bad.Field != "costs" {
					t.Error(costs, err)
				}
			}
			return r.Used(palisade.Costs{"tokens": 1 << 47})
		})
	must(t, err)
}

// behind puts a server before a real one that answers settles with this status, recorded or not.
func behind(t *testing.T, status int) (url string, settles *atomic.Int32) {
	t.Helper()
	target, err := url_.Parse(serve(t, budgets))
	must(t, err)
	proxy, settles := httputil.NewSingleHostReverseProxy(target), &atomic.Int32{}
	proxy.ModifyResponse = func(response *http.Response) error {
		if !strings.HasSuffix(response.Request.URL.Path, "/settle") {
			return nil
		}
		settles.Add(1)
		body, err := io.ReadAll(response.Body)
		body = bytes.Replace(body, []byte(`"recorded":true`), []byte(`"recorded":false`), 1)
		response.StatusCode, response.ContentLength = status, int64(len(body))
		response.Header.Set("Content-Length", strconv.Itoa(len(body)))
		response.Body = io.NopCloser(bytes.NewReader(body))
		return err
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL, settles
}

func nothing(context.Context, *palisade.Reservation) error { return nil }

func TestASettleThatIsLostNeverFailsTheWork(t *testing.T) {
	url, settles := behind(t, http.StatusBadGateway)
	var said []string
	client := newClient(t, url, func(options *palisade.Options) {
		options.Log = func(message string) { said = append(said, message) }
	})
	r, err := client.Reserve(context.Background(), chat("acme"), palisade.Terms{Costs: estimate}, palisade.Closed, nothing)
	must(t, err)
	if r.Settled != nil || settles.Load() != 2 || !strings.Contains(strings.Join(said, "\n"), "could not be settled") {
		t.Fatal(r.Settled, settles.Load(), said)
	}
}

func TestASettleThatIsNotRecordedYetIsAnAnswer(t *testing.T) {
	url, _ := behind(t, http.StatusAccepted)
	r, err := newClient(t, url).Reserve(context.Background(), chat("acme"), palisade.Terms{}, palisade.Closed, nothing)
	must(t, err)
	if r.Settled == nil || r.Settled.Recorded {
		t.Fatalf("%+v", r.Settled)
	}
}

func TestAnOutageIsDecidedByTheChoice(t *testing.T) {
	client := newClient(t, away)
	worked := 0
	for _, choice := range []palisade.OnUnavailable{palisade.Open, palisade.Closed} {
		r, err := client.Reserve(context.Background(), chat("acme"), palisade.Terms{Costs: estimate}, choice,
			func(ctx context.Context, r *palisade.Reservation) error {
				worked++
				more, err := r.Extend(ctx, palisade.Terms{Hold: "60s"})
				must(t, err)
				if !more.Allowed || r.Expired() {
					t.Error("it ends")
				}
				return nil
			})
		var blocked *palisade.BlockedError
		if choice == palisade.Closed != errors.As(err, &blocked) || (err == nil && r.Settled != nil) {
			t.Fatal(choice, err)
		}
	}
	if worked != 1 {
		t.Fatal(worked)
	}
}

func TestWorkWhoseReservationIsLostLearnsIt(t *testing.T) {
	fake := palisadetest.New()
	_, err := fake.Client.Reserve(context.Background(), chat("acme"), palisade.Terms{Costs: estimate}, palisade.Closed,
		func(ctx context.Context, r *palisade.Reservation) error {
			fake.Expire()
			extended, err := r.Extend(ctx, palisade.Terms{})
			must(t, err)
			if extended.Allowed || !extended.Expired || !r.Expired() {
				t.Errorf("%+v", extended)
			}
			return nil
		})
	must(t, err)
	want := []palisadetest.Op{palisadetest.Reserve, palisadetest.Extend, palisadetest.Settle}
	if !reflect.DeepEqual(fake.Ops(), want) {
		t.Fatal(fake.Ops())
	}
}

func TestNoVerbPrintsAReservation(t *testing.T) {
	fake := palisadetest.New()
	_, held, err := fake.Client.ReserveOnly(context.Background(), chat("acme"), palisade.Terms{}, palisade.Closed)
	must(t, err)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if printed := fmt.Sprintf(verb, *held) + fmt.Sprintf(verb, held); strings.Contains(printed, held.Token) {
			t.Error(verb, printed)
		}
	}
}
