package palisade_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	palisade "example.com/palisade/clients/go"
)

func by(account string) palisade.AttemptFacts {
	return palisade.AttemptFacts{
		IP: "203.0.113.5", Account: account, Username: account, Device: palisade.Device{ClientID: "d1"},
	}
}

func newGuard(t *testing.T, client *palisade.Client, choice palisade.OnUnavailable) *palisade.Guard {
	t.Helper()
	guard, err := client.Guard(choice)
	must(t, err)
	return guard
}

func wrong(context.Context, *palisade.Attempt) error { return nil }

func TestWhateverEndsAnAttemptWithoutSuccessIsAFailure(t *testing.T) {
	broken := errors.New("broken")
	ends := map[string]func(context.Context, *palisade.Attempt) error{
		"returns": wrong,
		"fails":   func(context.Context, *palisade.Attempt) error { return broken },
		"panics":  func(context.Context, *palisade.Attempt) error { panic(broken) },
		"exits":   func(context.Context, *palisade.Attempt) error { runtime.Goexit(); return nil },
	}
	for name, end := range ends {
		recorder := record(t, nil)
		guard := newGuard(t, newClient(t, recorder.URL), palisade.Closed)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			if _, err := guard.Login(context.Background(), by("bob"), end); name == "fails" && !errors.Is(err, broken) {
				t.Errorf("%s: %v", name, err)
			}
		}()
		<-done
		if recorder.steps() != "check failure" {
			t.Errorf("%s: %s", name, recorder.steps())
		}
	}
}

func TestAClientThatHangsUpIsAFailureThatIsReported(t *testing.T) {
	recorder := record(t, nil)
	guard := newGuard(t, newClient(t, recorder.URL), palisade.Closed)
	ctx, hangUp := context.WithCancel(context.Background())
	attempt, err := guard.Login(ctx, by("bob"), func(ctx context.Context, _ *palisade.Attempt) error {
		hangUp()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || recorder.steps() != "check failure" || attempt.Reported == nil {
		t.Fatal(err, recorder.steps())
	}
}

func TestAnOutcomeCarriesTheFactsAndTheIDOfItsCheck(t *testing.T) {
	recorder := record(t, nil)
	guard := newGuard(t, newClient(t, recorder.URL), palisade.Closed)
	attempt, err := guard.OTP(context.Background(), by("bob"), func(_ context.Context, attempt *palisade.Attempt) error {
		attempt.Success()
		return nil
	})
	must(t, err)
	if recorder.steps() != "check success" || recorder.facts[1]["request_id"] != attempt.RequestID() {
		t.Fatal(recorder.steps(), recorder.facts)
	}
	for name, value := range recorder.facts[0] {
		if name != "device" && recorder.facts[1][name] != value {
			t.Error(name)
		}
	}
}

func TestAnAbandonedAttemptReportsNothing(t *testing.T) {
	recorder := record(t, nil)
	guard := newGuard(t, newClient(t, recorder.URL), palisade.Closed)
	attempt, err := guard.Login(context.Background(), by("bob"), func(_ context.Context, attempt *palisade.Attempt) error {
		attempt.Abandon()
		return nil
	})
	if err != nil || recorder.steps() != "check" || attempt.Reported != nil {
		t.Fatal(err, recorder.steps())
	}
}

func TestGuessingIsStoppedAndTheNextAccountIsFree(t *testing.T) {
	guard := newGuard(t, newClient(t, serve(t, "")), palisade.Closed)
	verified := 0
	guess := func(context.Context, *palisade.Attempt) error { verified++; return nil }
	var blocked *palisade.BlockedError
	for tries := 0; tries < 5; tries++ {
		if _, err := guard.Login(context.Background(), by("bob"), guess); err != nil && !errors.As(err, &blocked) {
			t.Fatal(err)
		}
	}
	if verified != 2 || blocked == nil || blocked.Answer.Decision != palisade.SoftBlock || blocked.Answer.Headers["Retry-After"] == "" {
		t.Fatal(verified, blocked)
	}
	other := by("ann")
	other.Device.ClientID = "d2"
	if _, err := guard.Login(context.Background(), other, guess); err != nil {
		t.Fatal(err)
	}
}

// As many are verified at once as one after the other: two.
func TestGPendingGuessesAtOnceGainNothing(t *testing.T) {
	guard := newGuard(t, newClient(t, serve(t, "")), palisade.Closed)
	var verified atomic.Int64
	var entered, all sync.WaitGroup
	entered.Add(50)
	for guesses := 0; guesses < 50; guesses++ {
		all.Add(1)
		go func() {
			defer all.Done()
			var blocked *palisade.BlockedError
			_, err := guard.Login(context.Background(), by("bob"), func(context.Context, *palisade.Attempt) error {
				verified.Add(1)
				entered.Done()
				entered.Wait()
				return nil
			})
			if errors.As(err, &blocked) {
				entered.Done()
			} else if err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	if verified.Load() != 2 {
		t.Fatal(verified.Load())
	}
}

func TestADelayIsHeldUntilTheClientIsGone(t *testing.T) {
	recorder := record(t, map[string]any{"delay_ms": 3_600_000})
	guard := newGuard(t, newClient(t, recorder.URL), palisade.Closed)
	ctx, hangUp := context.WithCancel(context.Background())
	began := time.Now()
	time.AfterFunc(50*time.Millisecond, hangUp)
	if _, err := guard.Login(ctx, by("bob"), wrong); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 50*time.Millisecond || took > 8*time.Second {
		t.Fatal(took)
	}
}

// A check is answered, its outcome never: the report ends with one deadline.
func TestTheSecondTryOfAReportHasNoDeadlineOfItsOwn(t *testing.T) {
	var lock sync.Mutex
	var said []string
	silent := newClient(t, away, func(o *palisade.Options) {
		o.Deadline = 300 * time.Millisecond
		o.Log = func(message string) {
			lock.Lock()
			defer lock.Unlock()
			said = append(said, message)
		}
	})
	guard := newGuard(t, silent, palisade.Open)
	began := time.Now()
	attempt, err := guard.Login(context.Background(), by("bob"), wrong)
	if err != nil || attempt.Reported != nil || time.Since(began) > 8*time.Second {
		t.Fatal(err, time.Since(began))
	}
	all := strings.Join(said, "\n")
	if !strings.Contains(all, "could not be reported") || strings.Contains(all, "bob") || strings.Contains(all, "203.0.113.5") {
		t.Fatal(all)
	}
}

func TestACheckAndItsOutcomeInTwoRequests(t *testing.T) {
	guard, ctx := newGuard(t, newClient(t, serve(t, "")), palisade.Closed), context.Background()
	facts := by("ann")
	var bad *palisade.BadFactsError
	if _, err := guard.Report(ctx, palisade.Login, palisade.Success, facts); !errors.As(err, &bad) || bad.Field != "request_id" {
		t.Fatal(err)
	}
	answer, err := guard.Check(ctx, palisade.Login, facts)
	must(t, err)
	facts.RequestID = answer.RequestID
	reported, err := guard.Report(ctx, palisade.Login, palisade.Success, facts)
	if err != nil || reported.RequestID != answer.RequestID {
		t.Fatal(reported, err)
	}
	if _, err := guard.Report(ctx, palisade.Login, palisade.Abandoned, facts); !errors.As(err, &bad) {
		t.Fatal(err)
	}
}

func TestSessionsAreIssuedAndRevoked(t *testing.T) {
	guard, ctx := newGuard(t, newClient(t, serve(t, "")), palisade.Closed), context.Background()
	session, err := guard.IssueSession(ctx, "ann")
	must(t, err)
	_, err = guard.IssueSession(ctx, "ann")
	must(t, err)
	facts := by("ann")
	facts.Device = palisade.Device{SessionID: session}
	if _, err := guard.Login(ctx, facts, wrong); err != nil {
		t.Fatal(err)
	}
	// An empty id must not revoke all.
	if _, err := guard.RevokeSession(ctx, "ann", ""); err == nil {
		t.Fatal("a session without an id was revoked")
	}
	if one, err := guard.RevokeSession(ctx, "ann", session); err != nil || one != 1 {
		t.Fatal(one, err)
	}
	if rest, err := guard.RevokeSessions(ctx, "ann"); err != nil || rest != 1 {
		t.Fatal(rest, err)
	}
}
