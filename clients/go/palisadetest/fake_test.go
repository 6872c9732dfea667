package palisadetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	palisade "example.com/palisade/clients/go"
	"example.com/palisade/clients/go/palisadetest"
)

var job = palisade.JobFacts{Org: "acme", Cost: palisade.Cost(2)}

func TestRefusalsTakeFactsAndLetTheFirstPass(t *testing.T) {
	fake, ctx := palisadetest.New(), context.Background()
	fake.Refuse(palisadetest.JobEnqueue, palisadetest.Refusal{
		Facts: palisadetest.Facts{"org": "acme", "cost": 2}, Decision: palisade.HardBlock, After: 2,
	})
	var decisions []palisade.Decision
	for asked := 0; asked < 3; asked++ {
		answer, err := fake.Client.Check(ctx, job, palisade.Open)
		if err != nil {
			t.Fatal(err)
		}
		decisions = append(decisions, answer.Decision)
	}
	other, err := fake.Client.Check(ctx, palisade.JobFacts{Org: "else"}, palisade.Open)
	if fmt.Sprint(decisions) != "[allow allow hard_block]" || err != nil || !other.Allowed() {
		t.Fatal(decisions, other, err)
	}
	batch, err := fake.Client.Batch(ctx, []palisade.CheckFacts{job, palisade.JobFacts{Org: "else"}}, palisade.Open)
	if err != nil || batch[0].Allowed() || !batch[1].Allowed() || len(fake.Ops()) != 6 {
		t.Fatal(batch, err, fake.Ops())
	}
}

func TestAnOutageAndItsEnd(t *testing.T) {
	fake, ctx := palisadetest.New(), context.Background()
	fake.GoAway()
	if answer, err := fake.Client.Check(ctx, job, palisade.Closed); err != nil || answer.Status != 503 {
		t.Fatal(answer, err)
	}
	fake.ComeBack()
	answer, err := fake.Client.Check(ctx, job, palisade.Closed)
	if err != nil || answer.DecidedBy != palisade.ByPalisade || answer.Receipt == "" {
		t.Fatal(answer, err)
	}
	if given, err := fake.Client.Refund(ctx, answer.Receipt); err != nil || !given {
		t.Fatal(given, err)
	}
}

func TestAFailedQueueAndASession(t *testing.T) {
	fake, ctx, full := palisadetest.New(), context.Background(), errors.New("full")
	err := fake.Client.Enqueue(ctx, job, palisade.Closed, func(context.Context) error { return full })
	if !errors.Is(err, full) {
		t.Fatal(err)
	}
	guard, err := fake.Client.Guard(palisade.Closed)
	if err != nil {
		t.Fatal(err)
	}
	if session, err := guard.IssueSession(ctx, "ann"); err != nil || session != "session-ann" {
		t.Fatal(session, err)
	}
	if revoked, err := guard.RevokeSessions(ctx, "ann"); err != nil || revoked != 1 {
		t.Fatal(revoked, err)
	}
}
