package palisade

import (
	"context"
	"sync"
	"time"
)

const (
	amountMax = 1 << 47
	// Between two extensions: the shortest hold is a second.
	pauseMin = time.Second / 3
)

// Reservation is held while work goes on. Its methods may be called from several goroutines.
type Reservation struct {
	// Answer is the decision.
	Answer Answer
	// Settled is what the settle was answered, after the work; nil if it was lost, or nothing was
	// held.
	Settled *Settlement

	client *Client
	facts  CheckFacts
	choice OnUnavailable
	asked  Costs
	done   chan struct{}

	lock     sync.Mutex
	held     *HeldReservation
	ends     time.Time
	isLost   bool
	said     Costs
	released bool
}

// Reserve holds what work may cost at most for as long as it runs, and settles what it used. The
// error is a [*BlockedError] if the reservation is refused; work is not called then.
//
// The reservation is extended by itself at a third of the time that it has left. At the end it is
// settled by what [Reservation.Used] said, and what nobody spoke of was used as reserved, also
// after an error or a panic: the work may have been done. Only [Reservation.Release] gives
// everything back. A settle that is lost is logged and never fails the work.
func (c *Client) Reserve(
	ctx context.Context, facts CheckFacts, terms Terms, choice OnUnavailable,
	work func(ctx context.Context, reservation *Reservation) error,
) (*Reservation, error) {
	since := time.Now()
	answer, held, err := c.ReserveOnly(ctx, facts, terms, choice)
	if err != nil {
		return nil, err
	}
	if !answer.Allowed() {
		return nil, &BlockedError{answer}
	}
	r := &Reservation{
		Answer: answer, client: c, facts: facts, choice: choice,
		asked: asked(facts, terms), done: make(chan struct{}), said: Costs{},
	}
	if held == nil {
		return r, work(ctx, r)
	}
	r.hold(held, since)
	working, stop := context.WithCancel(detached{ctx})
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		r.keep(working)
	}()
	// Deferred: a panic has used something too. Whoever waited may be gone; the settle is sent all
	// the same.
	defer func() {
		stop()
		<-kept
		r.settle(detached{ctx})
	}()
	return r, work(ctx, r)
}

// asked is what a reservation costs where nobody says what it took.
func asked(facts CheckFacts, terms Terms) Costs {
	if terms.Costs != nil {
		return terms.Costs
	}
	cost, named := facts.check().wire["cost"].(int)
	if !named {
		cost = 1
	}
	return Costs{"requests": int64(cost)}
}

// Reserved is what is reserved, by unit; with [Terms.AtMost] it may be less than was asked for.
func (r *Reservation) Reserved() Costs {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.reserved()
}

func (r *Reservation) reserved() Costs {
	reserved := r.asked
	if r.held != nil {
		reserved = r.held.Reserved
	}
	copied := Costs{}
	for unit, amount := range reserved {
		copied[unit] = amount
	}
	return copied
}

// Expired is true once the reservation has ended or its place was lost: somebody else may have it,
// so stop working. It is never true of one that [OnUnavailable] let through.
func (r *Reservation) Expired() bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.isOver()
}

func (r *Reservation) isOver() bool {
	return r.held != nil && (r.isLost || !time.Now().Before(r.ends))
}

// Done is closed when the reservation has ended or its place was lost: [Reservation.Expired] as a
// channel, for select.
func (r *Reservation) Done() <-chan struct{} { return r.done }

// Used says what was used in all, by unit; a later word replaces an earlier one. A unit that is not
// named was used as reserved.
func (r *Reservation) Used(costs Costs) error {
	r.lock.Lock()
	defer r.lock.Unlock()
	reserved := r.reserved()
	for unit, amount := range costs {
		if _, ok := reserved[unit]; !ok {
			return &BadFactsError{"costs", "`costs` names a unit that was not reserved"}
		}
		if amount < 0 || amount > amountMax {
			return &BadFactsError{"costs", "`costs` must be whole numbers from 0 to 140737488355328"}
		}
	}
	r.released = false
	for unit, amount := range costs {
		r.said[unit] = amount
	}
	return nil
}

// Release says that nothing was used: everything goes back when the work has ended.
func (r *Reservation) Release() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.released, r.said = true, Costs{}
}

// Extend reserves more, or to a later end. If it is not allowed the reservation stays as it was.
// [OnUnavailable] decides without an answer.
func (r *Reservation) Extend(ctx context.Context, more Terms) (Extension, error) {
	token := r.token()
	if token == "" {
		return Extension{Allowed: true}, nil
	}
	extension, err := r.extend(ctx, token, more)
	if isUnavailable(err) {
		return Extension{Allowed: r.choice.decide(r.facts.check()).Allowed()}, nil
	}
	return extension, err
}

func (r *Reservation) token() string {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.held == nil {
		return ""
	}
	return r.held.Token
}

func (r *Reservation) extend(ctx context.Context, token string, more Terms) (Extension, error) {
	since := time.Now()
	extension, err := r.client.Extend(ctx, token, more)
	if err != nil {
		return extension, err
	}
	if extension.Expired || extension.Settled != nil {
		r.lose()
	}
	if extension.Held != nil {
		r.hold(extension.Held, since)
	}
	return extension, nil
}

func (r *Reservation) hold(held *HeldReservation, since time.Time) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.held = held
	// Whole seconds, rounded down; an end never moves to an earlier time.
	if ends := since.Add(time.Duration(held.ExpiresIn) * time.Second); ends.After(r.ends) {
		r.ends = ends
	}
}

func (r *Reservation) lose() {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.isLost = true
}

// keep extends the reservation until the work has ended or the reservation is over.
func (r *Reservation) keep(working context.Context) {
	for {
		pause := r.pause()
		if pause <= 0 {
			close(r.done)
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-working.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		_, err := r.extend(working, r.token(), Terms{})
		// Without an answer the next extension may get it.
		if err != nil && !isUnavailable(err) && working.Err() == nil {
			r.client.log("a reservation could not be extended: " + err.Error())
			r.lose()
		}
	}
}

// pause is the time to the next extension: a third of what is left. It is 0 after the end.
func (r *Reservation) pause() time.Duration {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.isOver() {
		return 0
	}
	left := time.Until(r.ends)
	if pause := left / 3; pause > pauseMin {
		return pause
	}
	if left < pauseMin {
		return left
	}
	return pauseMin
}

// settle says how it ended: twice if it must and the deadline of the first try allows. The second
// time changes nothing where the first one arrived.
func (r *Reservation) settle(ctx context.Context) {
	path, token, terms := r.ending()
	bounded, cancel := context.WithTimeout(ctx, r.client.deadline)
	defer cancel()
	var err error
	for tries := 0; tries < 2; tries++ {
		var settled Settlement
		if settled, err = r.client.settle(ctx, bounded, path, token, terms); err == nil {
			r.Settled = &settled
			return
		}
		if !isUnavailable(err) {
			break
		}
	}
	r.client.log("a reservation could not be settled, it counts in full: " + err.Error())
}

func (r *Reservation) ending() (path, token string, terms Terms) {
	r.lock.Lock()
	defer r.lock.Unlock()
	costs := r.said
	if len(costs) == 0 {
		costs = r.held.Reserved
	}
	// Of nothing that was reserved nothing can be settled.
	if r.released || len(costs) == 0 {
		return "/v1/release", r.held.Token, Terms{}
	}
	return "/v1/settle", r.held.Token, Terms{Costs: costs}
}
