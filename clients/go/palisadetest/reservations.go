package palisadetest

import "fmt"

// reservations are those of a test double, by token: no limit counts them, and only
// [Fake.Expire] ends them.
type reservations map[string]*reservation

type reservation struct {
	reserved map[string]float64
	expired  bool
	// settled is the first answer to a settle, which later ones get again.
	settled map[string]any
}

func (r reservations) expire() {
	for _, each := range r {
		each.expired = true
	}
}

// join adds what a question about a reservation is answered besides its decision.
func (r reservations) join(question Question, answer map[string]any) map[string]any {
	switch question.Op {
	case Reserve:
		if answer["decision"] == "allow" {
			r.take(question.Facts, answer)
		}
	case Extend:
		r.extend(question.Facts, answer)
	case Settle, Release:
		return r.settle(question.Facts, answer)
	}
	return answer
}

func (r reservations) take(facts Facts, answer map[string]any) {
	token := fmt.Sprint("reservation-", len(r)+1)
	reserved := amounts(facts["costs"])
	if len(reserved) == 0 {
		reserved = map[string]float64{"requests": 1}
	}
	r[token] = &reservation{reserved: reserved}
	r.tell(token, answer)
}

func (r reservations) tell(token string, answer map[string]any) {
	answer["reservation"], answer["expires_in"] = token, 3600
	answer["reserved"] = r[token].reserved
}

func (r reservations) extend(facts Facts, answer map[string]any) {
	token, _ := facts["reservation"].(string)
	found := r[token]
	switch {
	case found == nil || found.expired:
		answer["decision"], answer["expired"] = "deny", true
	case found.settled != nil:
		answer["decision"], answer["settled"] = "deny", found.settled
	case answer["decision"] == "allow":
		for unit, more := range amounts(facts["costs"]) {
			found.reserved[unit] += more
		}
		r.tell(token, answer)
	}
}

func (r reservations) settle(facts Facts, answer map[string]any) map[string]any {
	token, _ := facts["reservation"].(string)
	found := r[token]
	if found == nil {
		found = &reservation{reserved: map[string]float64{}}
	}
	if found.settled == nil {
		found.settled = found.settlement(facts)
	}
	answered := map[string]any{"request_id": answer["request_id"]}
	for name, value := range found.settled {
		answered[name] = value
	}
	return answered
}

func (r *reservation) settlement(facts Facts) map[string]any {
	said, settles := facts["costs"]
	used, over := map[string]float64{}, map[string]float64{}
	for unit, reserved := range r.reserved {
		amount, named := amounts(said)[unit]
		switch {
		case named:
			used[unit] = amount
		case settles:
			used[unit] = reserved
		default:
			used[unit] = 0
		}
		if used[unit] > reserved {
			over[unit] = used[unit] - reserved
		}
	}
	return map[string]any{
		"recorded": true, "late": false, "used": used, "reserved": r.reserved, "over": over,
	}
}

func amounts(costs any) map[string]float64 {
	found := map[string]float64{}
	named, _ := costs.(map[string]any)
	for unit, amount := range named {
		if number, ok := amount.(float64); ok {
			found[unit] = number
		}
	}
	return found
}
