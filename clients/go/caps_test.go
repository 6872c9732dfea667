package palisade

import (
	"fmt"
	"math/rand"
	"testing"
	"time"
)

type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newCaps(perKey, total int, window time.Duration) (*Caps, *clock) {
	clock := &clock{time.Unix(1_000_000, 0)}
	return &Caps{PerKey: perKey, Total: total, Window: window, now: clock.now}, clock
}

func TestNoWindowHoldsMoreThanTheCaps(t *testing.T) {
	for seed := int64(0); seed < 20; seed++ {
		play := rand.New(rand.NewSource(seed))
		perKey, total := 1+play.Intn(4), 1+play.Intn(9)
		window := []time.Duration{time.Second, 7500 * time.Millisecond}[play.Intn(2)]
		caps, clock := newCaps(perKey, total, window)
		type admitted struct {
			at  time.Time
			who string
		}
		var all []admitted
		for step := 0; step < 400; step++ {
			clock.at = clock.at.Add([]time.Duration{0, 0, 125 * time.Millisecond, 500 * time.Millisecond}[play.Intn(4)])
			who := fmt.Sprintf("ip 203.0.113.%d", 1+play.Intn(5))
			if caps.take([]string{who}) == 0 {
				all = append(all, admitted{clock.at, who})
			}
			inside, each := 0, map[string]int{}
			for _, one := range all {
				if one.at.Add(window).After(clock.at) {
					inside++
					each[one.who]++
				}
			}
			for _, count := range each {
				if count > perKey || inside > total {
					t.Fatalf("seed %d: %d in all, %v", seed, inside, each)
				}
			}
		}
		if len(all) <= total {
			t.Fatalf("seed %d: the caps do not free up again", seed)
		}
	}
}

func TestARefusalSaysHowLongAndIsNotCounted(t *testing.T) {
	caps, clock := newCaps(1, 10, 10*time.Second)
	steps := []struct {
		after    time.Duration
		subjects []string
		wait     time.Duration
	}{
		{0, []string{"account a", "ip 203.0.113.1"}, 0},
		{4 * time.Second, []string{"account a", "ip 203.0.113.2"}, 6 * time.Second},
		{0, []string{"account b", "ip 203.0.113.2"}, 0},
		{6 * time.Second, []string{"account a", "ip 203.0.113.1"}, 0},
	}
	for number, step := range steps {
		clock.at = clock.at.Add(step.after)
		if wait := caps.take(step.subjects); wait != step.wait {
			t.Fatalf("step %d: %s", number, wait)
		}
	}
}

func TestMemoryIsBoundedByWhatWasLetThrough(t *testing.T) {
	caps, clock := newCaps(1, 5, 10*time.Second)
	for flood := 0; flood < 10_000; flood++ {
		caps.take([]string{fmt.Sprint("account ", flood), fmt.Sprint("ip ", flood)})
	}
	if len(caps.keys) != 10 || len(caps.admitted) != 5 {
		t.Fatal(len(caps.keys), len(caps.admitted))
	}
	clock.at = clock.at.Add(10 * time.Second)
	if wait := caps.take([]string{"account x"}); wait != 0 || len(caps.keys) != 1 {
		t.Fatal(wait, len(caps.keys))
	}
}

func TestAnIPv6ClientIsIts64(t *testing.T) {
	caps, _ := newCaps(1, 10, 10*time.Second)
	for ip, free := range map[string]bool{"2001:db8::ffff:2": false, "2001:db8:0:1::1": true, "::ffff:203.0.113.9": false} {
		caps.keys, caps.admitted = nil, nil
		caps.take([]string{"ip 2001:db8::1"})
		caps.take([]string{"ip 203.0.113.9"})
		if (caps.take([]string{"ip " + ip}) == 0) != free {
			t.Error(ip)
		}
	}
}
