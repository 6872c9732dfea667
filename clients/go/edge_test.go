package palisade_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	palisade "example.com/palisade/clients/go"
)

const scoped = `
[[route]]
path = "/reports/*"
class = "reports"
scope = "reports:read"

[[limit]]
name = "reports-per-org"
by = ["org"]
class = "reports"
rate = "10/min"
`

// site is an application behind both middlewares, on a socket.
type site struct {
	*httptest.Server
	lock sync.Mutex
	said []string
}

func authenticated(r *http.Request) (*palisade.Identity, error) {
	switch r.Header.Get("Authorization") {
	case "":
		return nil, nil
	case "broken":
		return nil, errors.New("the database is away")
	default:
		return &palisade.Identity{Org: "acme", User: "u1", Token: "t1", Scopes: []string{"reports:read"}}, nil
	}
}

func newSite(t *testing.T, palisadeURL string, handler http.Handler, change ...func(*palisade.EdgeOptions)) *site {
	t.Helper()
	site := &site{}
	client := newClient(t, palisadeURL, func(o *palisade.Options) {
		o.Log = func(message string) {
			site.lock.Lock()
			defer site.lock.Unlock()
			site.said = append(site.said, message)
		}
	})
	options := palisade.EdgeOptions{OnUnavailable: palisade.Closed, TrustedProxies: []string{"127.0.0.1"}}
	for _, each := range change {
		each(&options)
	}
	edge, err := client.Edge(options)
	must(t, err)
	identity, err := client.Identity(palisade.IdentityOptions{OnUnavailable: palisade.Closed, Identity: authenticated})
	must(t, err)
	site.Server = httptest.NewServer(edge(identity(handler)))
	t.Cleanup(site.Close)
	return site
}

func (s *site) get(t *testing.T, path string, headers ...string) *http.Response {
	t.Helper()
	request, err := http.NewRequest("GET", s.URL, nil)
	must(t, err)
	// As it is: a client of Go would otherwise choose the spelling.
	request.URL.Opaque = path
	request.Header.Set("X-Forwarded-For", "198.51.100.7")
	for index := 0; index < len(headers); index += 2 {
		request.Header.Set(headers[index], headers[index+1])
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	must(t, err)
	body, err := io.ReadAll(response.Body)
	must(t, err)
	response.Body.Close()
	response.Body = io.NopCloser(strings.NewReader(string(body)))
	return response
}

func bodyOf(t *testing.T, response *http.Response) map[string]any {
	t.Helper()
	var body map[string]any
	must(t, json.NewDecoder(response.Body).Decode(&body))
	return body
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	seen, err := palisade.SeenIn(r.Context())
	if err != nil {
		panic(err)
	}
	w.Header().Set("X-Seen", seen.IP()+" "+seen.RequestID())
	_, _ = io.WriteString(w, r.URL.Path)
})

func TestBothLayersAreAskedUnderOneIDAndTheAnswerHasTheHeaders(t *testing.T) {
	recorder := record(t, nil)
	site := newSite(t, recorder.URL, ok)
	response := site.get(t, "/reports/1", "Authorization", "demo", "X-Request-Id", "from-the-proxy")
	if response.StatusCode != 200 || response.Header.Get("X-Request-Id") != "from-the-proxy" ||
		response.Header.Get("X-Seen") != "198.51.100.7 from-the-proxy" {
		t.Fatal(response)
	}
	edge, identity := recorder.facts[0], recorder.facts[1]
	if edge["layers"] != "edge" || edge["user"] != nil || identity["layers"] != "identity" || identity["user"] != "u1" ||
		edge["request_id"] != "from-the-proxy" || identity["request_id"] != "from-the-proxy" {
		t.Fatal(edge, identity)
	}
}

func TestAnIDThatIsNotPlainOrNotFromAProxyIsReplaced(t *testing.T) {
	site := newSite(t, record(t, nil).URL, ok)
	if id := site.get(t, "/", "X-Request-Id", "a b\"c").Header.Get("X-Request-Id"); len(id) != 32 {
		t.Fatal(id)
	}
	untrusting := newSite(t, record(t, nil).URL, ok, func(o *palisade.EdgeOptions) { o.TrustedProxies = nil })
	response := untrusting.get(t, "/", "X-Request-Id", "chosen")
	if id := response.Header.Get("X-Request-Id"); id == "chosen" || response.Header.Get("X-Seen") != "127.0.0.1 "+id {
		t.Fatal(id)
	}
}

func TestN4CallersWithoutIdentityAreRefusedWhereTheRouteNeedsOne(t *testing.T) {
	site := newSite(t, serve(t, scoped), ok)
	if refused := site.get(t, "/reports/1"); refused.StatusCode != 403 || refused.Header.Get("X-Request-Id") == "" {
		t.Fatal(refused)
	}
	passed := site.get(t, "/reports/1", "Authorization", "demo")
	if passed.StatusCode != 200 || passed.Header.Get("X-RateLimit-Limit") == "" {
		t.Fatal(passed)
	}
	if open := site.get(t, "/elsewhere"); open.StatusCode != 200 {
		t.Fatal(open)
	}
}

func TestTheRefusalIsPalisadesOwn(t *testing.T) {
	site := newSite(t, serve(t, scoped), ok)
	for asked := 0; asked < 10; asked++ {
		site.get(t, "/reports/1", "Authorization", "demo")
	}
	refused := site.get(t, "/reports/1", "Authorization", "demo")
	body := bodyOf(t, refused)
	if refused.StatusCode != 429 || refused.Header.Get("Retry-After") == "" || refused.Header.Get("Content-Type") != "application/json" ||
		body["request_id"] != refused.Header.Get("X-Request-Id") {
		t.Fatal(refused, body)
	}
}

// A router that reads a path as another one than was counted would be a way around a limit.
func TestNoSpellingOfAPathIsCountedAsAnother(t *testing.T) {
	recorder := record(t, nil)
	site := newSite(t, recorder.URL, ok)
	for _, path := range []string{"/reports/a%2Fb", "/reports/a%5cb", "/reports/a%5Cb", "/reports/../b", "/reports/%2e%2e/b", "/./b"} {
		response := site.get(t, path)
		if body := bodyOf(t, response); response.StatusCode != 400 || body["field"] != "path" {
			t.Errorf("%s: %d %v", path, response.StatusCode, body)
		}
	}
	if recorder.steps() != "" {
		t.Fatal(recorder.steps())
	}
	for path, counted := range map[string]string{"/%72eports/%7e": "/reports/~", "/a%20b/%C3%A4": "/a%20b/%C3%A4", "/a%25b": "/a%25b"} {
		if response := site.get(t, path); response.StatusCode != 200 {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
		if asked := recorder.facts[len(recorder.facts)-1]["path"]; asked != counted {
			t.Errorf("%s: %v", path, asked)
		}
	}
}

func TestAChainThatCannotBeReadIsA400(t *testing.T) {
	response := newSite(t, record(t, nil).URL, ok).get(t, "/", "X-Forwarded-For", "secret-host")
	if body := bodyOf(t, response); response.StatusCode != 400 || strings.Contains(body["message"].(string), "secret") {
		t.Fatal(response, body)
	}
}

func TestAnOutageIsWhatWasChosen(t *testing.T) {
	closed := newSite(t, away, ok).get(t, "/")
	if closed.StatusCode != 503 || closed.Header.Get("Retry-After") == "" || closed.Header.Get("X-RateLimit-Status") != "degraded" {
		t.Fatal(closed)
	}
}

func TestAMistakeOfTheHostIsA500ThatIsLogged(t *testing.T) {
	site := newSite(t, record(t, nil).URL, ok)
	if broken := site.get(t, "/", "Authorization", "broken"); broken.StatusCode != 500 {
		t.Fatal(broken)
	}
	site.lock.Lock()
	defer site.lock.Unlock()
	if len(site.said) != 1 || !strings.Contains(site.said[0], "the database is away") {
		t.Fatal(site.said)
	}
}

func TestAClientThatHangsUpWhileItIsAskedReachesNoHandler(t *testing.T) {
	asked, reached := make(chan struct{}), make(chan struct{}, 1)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(asked)
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	client := newClient(t, silent.URL)
	edge, err := client.Edge(palisade.EdgeOptions{OnUnavailable: palisade.Open})
	must(t, err)
	handler := edge(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	ctx, hangUp := context.WithCancel(context.Background())
	go func() { <-asked; hangUp() }()
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if len(reached) != 0 {
		t.Fatal("let through")
	}
}

func TestTheAnswerIsStreamedAndTheConnectionCanBeTakenOver(t *testing.T) {
	site := newSite(t, record(t, nil).URL, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, flushes := w.(http.Flusher)
		_, hijacks := w.(http.Hijacker)
		if !flushes || !hijacks {
			t.Error("the middleware hides what the connection can do")
		}
	}))
	site.get(t, "/")
}

func TestIdentityWithoutEdgeSaysWhatToDo(t *testing.T) {
	var said string
	client := newClient(t, away, func(o *palisade.Options) { o.Log = func(message string) { said = message } })
	identity, err := client.Identity(palisade.IdentityOptions{OnUnavailable: palisade.Open, Identity: authenticated})
	must(t, err)
	response := httptest.NewRecorder()
	identity(ok).ServeHTTP(response, httptest.NewRequest("GET", "/", nil))
	if response.Code != 500 || !strings.Contains(said, "`Edge`") {
		t.Fatal(response.Code, said)
	}
}

func TestN3ALoginHandlerAnswersBadInputWith400AndTheFieldsName(t *testing.T) {
	client := newClient(t, serve(t, ""))
	guard, err := client.Guard(palisade.Closed)
	must(t, err)
	edge, err := client.Edge(palisade.EdgeOptions{OnUnavailable: palisade.Closed, AsksNothing: true})
	must(t, err)
	site := httptest.NewServer(edge(palisade.LoginHandler{
		Guard: guard,
		Facts: func(r *http.Request) (palisade.AttemptFacts, error) {
			name := r.PostFormValue("username")
			device := palisade.Device{ClientID: r.PostFormValue("device")}
			return palisade.AttemptFacts{Account: name, Username: name, Device: device}, nil
		},
		Verify: func(r *http.Request, attempt *palisade.Attempt) error {
			if r.PostFormValue("password") == "correct horse" {
				attempt.Success()
			}
			return nil
		},
		Welcome: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "welcome") },
	}))
	t.Cleanup(site.Close)
	attempt := func(name, device, password string) (int, string) {
		form := url.Values{"username": {name}, "device": {device}, "password": {password}}
		response, err := http.PostForm(site.URL, form)
		must(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		must(t, err)
		return response.StatusCode, string(body)
	}
	bad := map[string][2]string{
		"empty name": {"", "d1"}, "long name": {strings.Repeat("n", 600), "d1"}, "long device": {"ann", strings.Repeat("n", 600)},
		"larger than a question": {strings.Repeat("n", 70_000), "d1"}, "control": {"nn\x00", "d1"}, "not UTF-8": {"nn\xff", "d1"},
	}
	for what, given := range bad {
		status, body := attempt(given[0], given[1], "x")
		if status != 400 || !strings.Contains(body, `"field":`) || strings.Contains(body, "nn") {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	if status, body := attempt("ann", "d1", "correct horse"); status != 200 || body != "welcome" {
		t.Fatal(status, body)
	}
	for _, wanted := range []int{401, 401, 429} {
		if status, body := attempt("bob", "d2", "guess"); status != wanted {
			t.Fatal(status, body)
		}
	}
}

func TestARequestWithManyAnswersHasTheNearestLimitsHeaders(t *testing.T) {
	// The second layer has less left than the first: its headers are those to show.
	site := newSite(t, serve(t, scoped), ok)
	site.get(t, "/reports/1", "Authorization", "demo")
	response := site.get(t, "/reports/1", "Authorization", "demo")
	if response.Header.Get("X-RateLimit-Limit") != "10" || response.Header.Get("X-RateLimit-Remaining") != "8" {
		t.Fatal(response.Header)
	}
}
