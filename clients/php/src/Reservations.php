<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The four calls of a reservation: reserve, extend, settle, release.
 *
 * @internal
 */
final class Reservations
{
    public function __construct(private readonly Palisade $palisade)
    {
    }

    /** @param array<string, mixed> $terms */
    public function reserve(CheckFacts $facts, OnUnavailable|Caps $choice, array $terms): ReserveAnswer
    {
        $asked = $facts->question();
        // The server answers a repeated id with the reservation that it gave before. One request
        // may reserve more than once, so each reservation has an id of its own.
        $question = $asked->with(['correlation_id' => $asked->requestId, ...$asked->wire, ...Question::present($terms)]);
        try {
            $value = $this->palisade->ask('POST', '/v1/reserve', $question->wire);
            $answer = $this->palisade->read($value, $question, 'class');
        } catch (Unavailable) {
            return new ReserveAnswer(OnUnavailable::decide($choice, $question));
        }
        return new ReserveAnswer($answer, $answer->allowed() ? HeldReservation::parse($value) : null);
    }

    /** @param array<string, int>|null $costs */
    public function extend(#[\SensitiveParameter] string $token, ?array $costs, ?string $hold): Extension
    {
        return Extension::parse($this->followUp('extend', $token, ['costs' => $costs, 'hold' => $hold]));
    }

    /** @param array<string, int>|null $costs `null` releases */
    public function settle(#[\SensitiveParameter] string $token, ?array $costs, ?Deadline $deadline = null): Settlement
    {
        // An empty list would be one in JSON too, and costs are an object.
        $costs = $costs === [] ? new \stdClass() : $costs;
        return Settlement::parse($this->followUp($costs === null ? 'release' : 'settle', $token, ['costs' => $costs], $deadline));
    }

    /**
     * Settles twice if it must and the deadline of the first try allows: the second time changes
     * nothing where the first one arrived. `null` if it could not be said, which is logged: work
     * that has been done must not fail for it.
     *
     * @param array<string, int>|null $costs
     */
    public function end(#[\SensitiveParameter] string $token, ?array $costs): ?Settlement
    {
        $deadline = $this->palisade->deadline();
        $why = null;
        for ($try = 0; $try < 2; $try++) {
            try {
                return $this->settle($token, $costs, $deadline);
            } catch (Unavailable $lost) {
                $why = $lost;
            } catch (PalisadeException $refused) {
                $why = $refused;
                break;
            }
        }
        $this->palisade->log("a reservation could not be settled, it counts in full: {$why?->getMessage()}");
        return null;
    }

    /** @param array<string, mixed> $more */
    private function followUp(string $step, #[\SensitiveParameter] string $token, array $more, ?Deadline $deadline = null): mixed
    {
        $requestId = Question::newId();
        $wire = Question::present(['reservation' => $token, 'request_id' => $requestId, ...$more]);
        $value = $this->palisade->ask('POST', "/v1/$step", $wire, $deadline);
        if (!is_array($value) || ($value['request_id'] ?? null) !== $requestId) {
            throw new Unavailable('the answer belongs to another request');
        }
        return $value;
    }
}
