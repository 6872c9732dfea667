package palisade_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	palisade "example.com/palisade/clients/go"
)

var reading = palisade.RequestFacts{IP: "203.0.113.7", Method: "GET", Path: "/"}

func TestAURLOrATokenThatCannotBeUsedIsRefusedAtTheStart(t *testing.T) {
	urls := []string{"", "127.0.0.1:8080", "ftp://host", "http://", "http://host/path", "http://a:b@host", "http://host?x"}
	for _, url := range urls {
		var wrong *palisade.MisconfiguredError
		if _, err := palisade.New(url, palisade.Options{}); !errors.As(err, &wrong) {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, token := range []string{"secret\n", "two words", "naïve"} {
		_, err := palisade.New("http://host", palisade.Options{Token: token})
		if err == nil || strings.Contains(err.Error(), strings.TrimSpace(token)) {
			t.Errorf("%q: %v", token, err)
		}
	}
}

func TestACallWithoutAChoiceIsAnError(t *testing.T) {
	client, ctx := newClient(t, away), context.Background()
	for _, choice := range []palisade.OnUnavailable{nil, (*palisade.Caps)(nil), &palisade.Caps{}, &palisade.Caps{PerKey: 1, Total: 1}} {
		_, checked := client.Check(ctx, reading, choice)
		_, batched := client.Batch(ctx, []palisade.CheckFacts{reading}, choice)
		_, guarded := client.Guard(choice)
		_, edged := client.Edge(palisade.EdgeOptions{OnUnavailable: choice})
		for _, err := range []error{checked, batched, guarded, edged} {
			var wrong *palisade.MisconfiguredError
			if !errors.As(err, &wrong) {
				t.Errorf("%v: %v", choice, err)
			}
		}
	}
}

func TestACancelledCallerIsNoOutage(t *testing.T) {
	recorder := record(t, nil)
	client := newClient(t, recorder.URL)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	answer, err := client.Check(ctx, reading, palisade.Open)
	if !errors.Is(err, context.Canceled) || answer.Allowed() {
		t.Fatal(answer, err)
	}
	hanging := listener(t, func(net.Conn) { time.Sleep(patience) })
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	answer, err = newClient(t, hanging).Check(short, reading, palisade.Open)
	if !errors.Is(err, context.DeadlineExceeded) || answer.Allowed() {
		t.Fatal(answer, err)
	}
}

// listener does with each connection whatever the test wants.
func listener(t *testing.T, with func(net.Conn)) string {
	t.Helper()
	found, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { found.Close() })
	go func() {
		for {
			connection, err := found.Accept()
			if err != nil {
				return
			}
			go with(connection)
		}
	}()
	return "http://" + found.Addr().String()
}

// No name server answers a test of this package. It stays so: a look-up may outlive the test that
// asked for it.
func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
}

func TestS12AResolverThatHangsIsWithinTheDeadline(t *testing.T) {
	client := newClient(t, "http://palisade.example:8080", func(o *palisade.Options) { o.Deadline = 300 * time.Millisecond })
	began := time.Now()
	answer, err := client.Check(context.Background(), reading, palisade.Closed)
	if took := time.Since(began); took < 300*time.Millisecond || took > 8*time.Second {
		t.Fatal(took)
	}
	if err != nil || answer.Mode != palisade.FailClosed {
		t.Fatal(answer, err)
	}
}

func TestAHandshakeThatHangsIsWithinTheDeadline(t *testing.T) {
	url := listener(t, func(net.Conn) { time.Sleep(patience) })
	client := newClient(t, strings.Replace(url, "http:", "https:", 1), func(o *palisade.Options) { o.Deadline = 300 * time.Millisecond })
	began := time.Now()
	answer, err := client.Check(context.Background(), reading, palisade.Closed)
	if took := time.Since(began); took < 300*time.Millisecond || took > 8*time.Second {
		t.Fatal(took)
	}
	if err != nil || answer.Mode != palisade.FailClosed {
		t.Fatal(answer, err)
	}
}

// More callers than connections: they wait for a turn, and the wait is within the deadline.
func TestConnectionsAreBoundedAndTheWaitForOneIsWithinTheDeadline(t *testing.T) {
	var open, most atomic.Int64
	url := listener(t, func(net.Conn) {
		if now := open.Add(1); now > most.Load() {
			most.Store(now)
		}
		time.Sleep(patience)
	})
	client := newClient(t, url, func(o *palisade.Options) {
		o.Deadline, o.ConnectionsMax = 300*time.Millisecond, 4
	})
	began := time.Now()
	var all sync.WaitGroup
	for asked := 0; asked < 32; asked++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if answer, err := client.Check(context.Background(), reading, palisade.Closed); err != nil || answer.Mode != palisade.FailClosed {
				t.Error(answer, err)
			}
		}()
	}
	all.Wait()
	if took := time.Since(began); took > 8*time.Second {
		t.Fatal(took)
	}
	// A connection that was given up is replaced for whoever waits next.
	if most.Load() > 32 {
		t.Fatal(most.Load())
	}
}

func TestManyGoroutinesShareOneClient(t *testing.T) {
	client := newClient(t, serve(t, ""))
	caps := &palisade.Caps{PerKey: 1, Total: 1, Window: time.Hour}
	var allowed atomic.Int64
	var all sync.WaitGroup
	for asked := 0; asked < 40; asked++ {
		all.Add(1)
		go func() {
			defer all.Done()
			facts := palisade.RequestFacts{IP: "203.0.113.7", Method: "POST", Path: "/auth/token"}
			answer, err := client.Check(context.Background(), facts, caps)
			if err != nil || answer.DecidedBy != palisade.ByPalisade {
				t.Error(answer, err)
			}
			if answer.Allowed() {
				allowed.Add(1)
			}
		}()
	}
	all.Wait()
	if allowed.Load() != 10 {
		t.Fatal(allowed.Load())
	}
}

func TestAnOutageIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	var lock sync.Mutex
	var said []string
	var broken atomic.Bool
	broken.Store(true)
	server := record(t, nil)
	behind := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		behind.ServeHTTP(w, r)
	})
	client := newClient(t, server.URL, func(o *palisade.Options) {
		o.Log = func(message string) {
			lock.Lock()
			defer lock.Unlock()
			said = append(said, message)
		}
	})
	for _, down := range []bool{true, true, false, false, true} {
		broken.Store(down)
		if _, err := client.Check(context.Background(), reading, palisade.Open); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != 3 || !strings.Contains(said[0], "answered 502") || said[1] != "palisade answers again" {
		t.Fatal(said)
	}
}

func TestTextThatIsNotUTF8IsNamedAndNotSent(t *testing.T) {
	recorder := record(t, nil)
	guard, err := newClient(t, recorder.URL).Guard(palisade.Open)
	must(t, err)
	facts := palisade.AttemptFacts{IP: "203.0.113.7", Account: "a", Username: "ann\xff"}
	_, err = guard.Login(context.Background(), facts, nil)
	var bad *palisade.BadInputError
	if !errors.As(err, &bad) || bad.Field != "username" || bad.Answer.Status != 400 || recorder.steps() != "" {
		t.Fatal(err, recorder.steps())
	}
}

func TestBadInputInABatchIsNamedWithItsPlace(t *testing.T) {
	client, long := newClient(t, serve(t, "")), reading
	long.User = strings.Repeat("u", 600)
	_, err := client.Batch(context.Background(), []palisade.CheckFacts{reading, long}, palisade.Open)
	var bad *palisade.BadInputError
	var facts *palisade.BadFactsError
	if !errors.As(err, &bad) || bad.Field != "checks[1].user" || bad.Answer.Status != 400 || !errors.As(err, &facts) {
		t.Fatal(err)
	}
}

func TestTJobsAJobThatWasNotQueuedIsGivenBack(t *testing.T) {
	policy := "[[class]]\nname = \"jobs\"\n[[limit]]\nname = \"jobs-per-org\"\nby = [\"org\"]\nclass = \"jobs\"\nrate = \"10/h\"\n"
	client := newClient(t, serve(t, policy))
	full := errors.New("the queue is full")
	queue := func(with error) error {
		facts := palisade.JobFacts{Org: "acme", Token: "t1", Class: "jobs"}
		return client.Enqueue(context.Background(), facts, palisade.Closed, func(context.Context) error { return with })
	}
	for round := 0; round < 9; round++ {
		must(t, queue(nil))
		if err := queue(full); !errors.Is(err, full) {
			t.Fatal(err)
		}
	}
	func() {
		defer func() { _ = recover() }()
		facts := palisade.JobFacts{Org: "acme", Token: "t1", Class: "jobs"}
		_ = client.Enqueue(context.Background(), facts, palisade.Closed, func(context.Context) error { panic(full) })
	}()
	must(t, queue(nil))
	var blocked *palisade.BlockedError
	if err := queue(nil); !errors.As(err, &blocked) {
		t.Fatal(err)
	}
}

func TestAReceiptGivesBackOnce(t *testing.T) {
	client, ctx := newClient(t, serve(t, "")), context.Background()
	facts := palisade.RequestFacts{IP: "203.0.113.7", Method: "POST", Path: "/auth/token", Receipt: true}
	answer, err := client.Check(ctx, facts, palisade.Closed)
	must(t, err)
	for _, wanted := range []bool{true, false} {
		if given, err := client.Refund(ctx, answer.Receipt); err != nil || given != wanted {
			t.Fatal(given, err)
		}
	}
	var bad *palisade.BadFactsError
	if _, err := client.Refund(ctx, "A"+answer.Receipt[1:]+"B"); !errors.As(err, &bad) || bad.Field != "receipt" {
		t.Fatal(err)
	}
	var unavailable *palisade.UnavailableError
	if _, err := newClient(t, away).Refund(ctx, answer.Receipt); !errors.As(err, &unavailable) {
		t.Fatal(err)
	}
}

func TestNoVerbPrintsWhoItIs(t *testing.T) {
	who := "somebody"
	values := []any{
		palisade.RequestFacts{IP: who, User: who, Client: &palisade.OAuthClient{ID: who}}, palisade.JobFacts{Org: who},
		palisade.AttemptFacts{Account: who, Device: palisade.Device{ClientID: who}}, palisade.HitFacts{IP: who},
		palisade.Device{ClientID: who}, palisade.OAuthClient{ID: who}, palisade.Identity{User: who},
		palisade.Answer{Receipt: who}, &palisade.BlockedError{Answer: palisade.Answer{Receipt: who}},
	}
	for _, value := range values {
		if said := fmt.Sprintf("%v %+v %#v %s", value, value, value, value); strings.Contains(said, who) {
			t.Errorf("%T: %s", value, said)
		}
	}
}

// authority signs certificates for the loopback address.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return authority{certificate, key}
}

func (a authority) issue(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "caller"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func TestTLSACallerWithACertificateIsAnsweredAndNobodyElseIs(t *testing.T) {
	ours, home := newAuthority(t), t.TempDir()
	served := ours.issue(t)
	key, err := x509.MarshalPKCS8PrivateKey(served.PrivateKey)
	must(t, err)
	writePEM(t, filepath.Join(home, "key.pem"), "PRIVATE KEY", key)
	writePEM(t, filepath.Join(home, "cert.pem"), "CERTIFICATE", served.Certificate[0])
	writePEM(t, filepath.Join(home, "ca.pem"), "CERTIFICATE", ours.certificate.Raw)
	url := serveIn(t, home, "[tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\nclient_ca = \"ca.pem\"\n")
	roots := x509.NewCertPool()
	roots.AddCert(ours.certificate)
	cases := map[string]*tls.Config{
		palisade.ByPalisade:                   {RootCAs: roots, Certificates: []tls.Certificate{ours.issue(t)}},
		palisade.ByClient + " no certificate": {RootCAs: roots},
		palisade.ByClient + " a stranger's":   {RootCAs: roots, Certificates: []tls.Certificate{newAuthority(t).issue(t)}},
		palisade.ByClient + " not believed":   nil,
	}
	for name, config := range cases {
		client := newClient(t, url, func(o *palisade.Options) { o.TLS = config })
		for tries := 0; tries < 2; tries++ {
			answer, err := client.Check(context.Background(), reading, palisade.Closed)
			if wanted, _, _ := strings.Cut(name, " "); err != nil || answer.DecidedBy != wanted {
				t.Errorf("%s: %s %v", name, answer.DecidedBy, err)
			}
		}
	}
}
