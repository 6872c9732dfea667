package palisade

import (
	"crypto/hmac"
	"crypto/sha256"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const closedRetry = 5 * time.Second

// OnUnavailable decides when Palisade cannot be asked. It is [Closed], [Open] or [*Caps], and
// every use names one: there is no default.
type OnUnavailable interface {
	decide(q question) Answer
	valid() error
}

type always struct{ open bool }

var (
	// Closed refuses with 503: for what must not happen unlimited.
	Closed OnUnavailable = always{open: false}
	// Open lets through: for what is worth more than its limit.
	Open OnUnavailable = always{open: true}
)

func (a always) decide(q question) Answer {
	if a.open {
		return letThrough(FailOpen, q.requestID)
	}
	return turnAway(FailClosed, q.requestID, closedRetry)
}

func (always) valid() error { return nil }

// Caps let through up to these bounds, in this process: at most PerKey for each address,
// account, organisation, user or token, and Total for all together, in any Window. Share one
// by its pointer wherever the bounds are meant to hold together.
type Caps struct {
	PerKey int
	Total  int
	Window time.Duration

	lock   sync.Mutex
	now    func() time.Time
	secret []byte
	// What was let through inside the window, oldest first: never more than Total, which
	// bounds the keys too.
	admitted []admission
	keys     map[capKey][]time.Time
}

// capKey is a digest, so that memory holds no identifier.
type capKey [16]byte

type admission struct {
	at   time.Time
	keys []capKey
}

func (c *Caps) valid() error {
	if c == nil || c.PerKey < 1 || c.Total < 1 || c.Window <= 0 {
		return &MisconfiguredError{"`PerKey`, `Total` and `Window` of `Caps` must be positive"}
	}
	return nil
}

func (c *Caps) decide(q question) Answer {
	if wait := c.take(q.subjects); wait > 0 {
		return turnAway(Degraded, q.requestID, wait)
	}
	return letThrough(Degraded, q.requestID)
}

// take counts one on every subject, or on none: then it returns how long to wait.
func (c *Caps) take(subjects []string) time.Duration {
	c.lock.Lock()
	defer c.lock.Unlock()
	now := c.begin()
	c.forget(now)
	keys := make([]capKey, len(subjects))
	var wait time.Duration
	if len(c.admitted) >= c.Total {
		wait = c.admitted[0].at.Add(c.Window).Sub(now)
	}
	for index, subject := range subjects {
		keys[index] = c.digest(subject)
		log := c.keys[keys[index]]
		if len(log) < c.PerKey {
			continue
		}
		if longer := log[0].Add(c.Window).Sub(now); longer > wait {
			wait = longer
		}
	}
	if wait > 0 {
		return wait
	}
	c.admitted = append(c.admitted, admission{now, keys})
	for _, key := range keys {
		c.keys[key] = append(c.keys[key], now)
	}
	return 0
}

// begin makes a literal ready for use; the time.
func (c *Caps) begin() time.Time {
	if c.now == nil {
		c.now = time.Now
	}
	if c.keys == nil {
		c.keys, c.secret = map[capKey][]time.Time{}, randomBytes(32)
	}
	return c.now()
}

// forget drops what the window no longer holds.
func (c *Caps) forget(now time.Time) {
	for len(c.admitted) > 0 && !c.admitted[0].at.Add(c.Window).After(now) {
		for _, key := range c.admitted[0].keys {
			if c.keys[key] = c.keys[key][1:]; len(c.keys[key]) == 0 {
				delete(c.keys, key)
			}
		}
		c.admitted = c.admitted[1:]
	}
}

func (c *Caps) digest(subject string) capKey {
	if kind, value, _ := strings.Cut(subject, " "); kind == "ip" {
		subject = kind + " " + prefix(value)
	}
	mac := hmac.New(sha256.New, c.secret)
	mac.Write([]byte(subject))
	return *(*capKey)(mac.Sum(nil))
}

// prefix is what one client owns: an IPv4 address, the /64 of an IPv6 address.
func prefix(ip string) string {
	address, err := netip.ParseAddr(ip)
	if err != nil {
		return ip
	}
	address = address.Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

// requireChoice refuses a choice that was not made.
func requireChoice(choice OnUnavailable) error {
	if choice == nil {
		return &MisconfiguredError{"`OnUnavailable` must be `Closed`, `Open` or a `*Caps`"}
	}
	return choice.valid()
}
