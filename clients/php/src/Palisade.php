<?php

declare(strict_types=1);

namespace Palisade\Client;

/** Asks a Palisade server. Make one per process or request and keep it. */
class Palisade
{
    private bool $reached = true;
    private readonly Transport $transport;

    /**
     * @param string|null $token the caller token, if Palisade wants one
     * @param float $deadline bounds a whole question, in seconds: looking up the server's name,
     *     connecting, TLS, sending, receiving, and a second try
     * @param array<string, mixed> $tls PHP's `ssl` context options: `cafile`, `local_cert`, …
     * @param (\Closure(string): void)|null $log hears when Palisade cannot be asked, and when it
     *     can be again; `error_log` if it is `null`
     * @param int $delaysMax so many processes of this machine at once hold an answer back as long
     *     as Palisade says; an attacker must not occupy them all
     */
    public function __construct(
        string $url,
        #[\SensitiveParameter] ?string $token = null,
        private readonly float $deadline = 0.25,
        array $tls = [],
        private readonly ?\Closure $log = null,
        private readonly int $delaysMax = 4,
    ) {
        if (!($deadline > 0) || is_infinite($deadline) || $delaysMax < 0) {
            throw new Misconfigured('`deadline` must be positive, and `delaysMax` not negative');
        }
        $this->transport = $this->transport(Target::of($url, $token, $tls));
    }

    /** @internal a test double has its own */
    protected function transport(Target $target): Transport
    {
        return new StreamTransport($target, new Resolver());
    }

    /** Decides and counts. */
    public function check(CheckFacts $facts, OnUnavailable|Caps $onUnavailable): Answer
    {
        return $this->decide('/v1/check', $facts->question(), $onUnavailable);
    }

    /** Decides and counts nothing. */
    public function peek(CheckFacts $facts, OnUnavailable|Caps $onUnavailable): Answer
    {
        return $this->decide('/v1/peek', $facts->question(), $onUnavailable);
    }

    /** Counts a call of a heavy endpoint. */
    public function apiHit(HitFacts $facts, OnUnavailable|Caps $onUnavailable): Answer
    {
        return $this->decide('/v1/guard/api/hit', $facts->question(), $onUnavailable);
    }

    /**
     * Up to 1,000 checks in one call, answered in their order.
     *
     * @param list<CheckFacts> $checks
     * @return list<Answer>
     */
    public function batch(array $checks, OnUnavailable|Caps $onUnavailable): array
    {
        $questions = array_map(static fn (CheckFacts $facts): Question => $facts->question(), array_values($checks));
        $wires = array_map(static fn (Question $question): array => $question->wire, $questions);
        try {
            $value = $this->ask('POST', '/v1/batch', ['checks' => $wires]);
            $answers = is_array($value) ? $value['answers'] ?? null : null;
            if (!is_array($answers) || !array_is_list($answers) || count($answers) !== count($questions)) {
                throw new Unavailable('the answer has not one member for each check');
            }
            return array_map(
                fn (mixed $answer, Question $question, int $number): Answer
                    => $this->read($answer, $question, "checks[$number].class"),
                $answers,
                $questions,
                array_keys($questions),
            );
        } catch (Unavailable) {
            return array_map(
                static fn (Question $question): Answer => OnUnavailable::decide($onUnavailable, $question),
                $questions,
            );
        }
    }

    /**
     * Gives back what the check with this receipt took; true if it was still counted.
     * `Unavailable` is thrown if nobody could be asked.
     */
    public function refund(#[\SensitiveParameter] string $receipt): bool
    {
        $value = $this->ask('POST', '/v1/refund', ['receipt' => $receipt, 'request_id' => Question::newId()]);
        return is_array($value) && ($value['refunded'] ?? null) === true;
    }

    /**
     * Asks before a job is queued; `Blocked` is thrown if it may not be. If `queue` throws, the job
     * is not queued and the charge is given back.
     *
     * @template T
     * @param callable(): T $queue
     * @return T
     */
    public function enqueue(JobFacts $facts, OnUnavailable|Caps $onUnavailable, callable $queue): mixed
    {
        $answer = $this->check($facts, $onUnavailable)->orThrow();
        try {
            return $queue();
        } catch (\Throwable $failed) {
            try {
                $answer->receipt === null || $this->refund($answer->receipt);
            } catch (PalisadeException) {
                // What the queue says matters more than a charge that stays.
            }
            throw $failed;
        }
    }

    /**
     * Holds what work may cost at most while it is done, and settles what it used. `Blocked` is
     * thrown if the reservation is refused.
     *
     * It is settled by what `Reservation::used()` said. What nobody spoke of was used as reserved,
     * also after an exception, `exit` or a time limit of PHP: the work may have been done. Only
     * `Reservation::release()` gives everything back. A settle that is lost is logged and never
     * fails the work.
     *
     * @template T
     * @param callable(Reservation): T $work
     * @param array<string, int>|null $costs what it may cost at most, by unit; one request if `null`
     * @param string|null $hold how long the reservation lasts: `90s`, 60 seconds if `null`
     * @param bool $atMost takes what is left instead of a refusal
     * @return T
     */
    public function reserve(
        CheckFacts $facts,
        OnUnavailable|Caps $onUnavailable,
        callable $work,
        ?array $costs = null,
        ?string $hold = null,
        bool $atMost = false,
    ): mixed {
        $since = Reservation::now();
        $reserved = $this->reserveOnly($facts, $onUnavailable, $costs, $hold, $atMost);
        $asked = $costs ?? ['requests' => $facts->question()->wire['cost'] ?? 1];
        $reservation = new Reservation(new Reservations($this), $facts, $onUnavailable, $asked, $reserved, $since);
        return Unfinished::during(static fn (): mixed => $work($reservation), $reservation->end(...));
    }

    /**
     * Only the reservation, for work that begins in one process and ends in another: `extend`,
     * `settle` and `release` take its `held->token`.
     *
     * @param array<string, int>|null $costs
     */
    public function reserveOnly(
        CheckFacts $facts,
        OnUnavailable|Caps $onUnavailable,
        ?array $costs = null,
        ?string $hold = null,
        bool $atMost = false,
    ): ReserveAnswer {
        $terms = ['costs' => $costs, 'hold' => $hold, 'at_most' => $atMost ?: null];
        return (new Reservations($this))->reserve($facts, $onUnavailable, $terms);
    }

    /**
     * More cost, a later end, or both. `Unavailable` is thrown if nobody could be asked.
     *
     * @param array<string, int>|null $costs
     */
    public function extend(#[\SensitiveParameter] string $token, ?array $costs = null, ?string $hold = null): Extension
    {
        return (new Reservations($this))->extend($token, $costs, $hold);
    }

    /**
     * Says what was used; a unit that is not named was used as reserved. `Unavailable` is thrown if
     * nobody could be asked.
     *
     * @param array<string, int> $costs
     */
    public function settle(#[\SensitiveParameter] string $token, array $costs): Settlement
    {
        return (new Reservations($this))->settle($token, $costs);
    }

    /** Says that nothing was used. `Unavailable` is thrown if nobody could be asked. */
    public function release(#[\SensitiveParameter] string $token): Settlement
    {
        return (new Reservations($this))->settle($token, null);
    }

    /** Protection of logins and one-time codes. */
    public function guard(OnUnavailable|Caps $onUnavailable): Guard
    {
        return new Guard($this, $onUnavailable);
    }

    /** Closes the connection that is kept. */
    public function close(): void
    {
        $this->transport->close();
    }

    /** @internal asks for a decision; the choice decides if there is none */
    public function decide(string $path, Question $question, OnUnavailable|Caps $choice): Answer
    {
        try {
            return $this->read($this->ask('POST', $path, $question->wire), $question, 'class');
        } catch (Unavailable) {
            return OnUnavailable::decide($choice, $question);
        }
    }

    /** @internal */
    public function deadline(): Deadline
    {
        return Deadline::in($this->deadline);
    }

    /**
     * One question; what is no answer to it is thrown. A second try shares the first one's deadline.
     *
     * @param array<mixed> $wire
     * @internal
     */
    public function ask(string $method, string $path, #[\SensitiveParameter] array $wire, ?Deadline $deadline = null): mixed
    {
        $torn = Fields::notUnicode($wire);
        if ($torn !== null) {
            throw self::refused($wire, $torn, "`$torn` is not Unicode text");
        }
        try {
            $reply = $this->transport->ask(new Call($method, $path, $wire), $deadline ?? $this->deadline());
            $value = self::value($reply, $wire);
        } catch (Unavailable $why) {
            if ($this->reached) {
                $this->log("palisade cannot be asked ({$why->getMessage()}): `onUnavailable` decides");
            }
            $this->reached = false;
            throw $why;
        }
        if (!$this->reached) {
            $this->log('palisade answers again');
        }
        $this->reached = true;
        return $value;
    }

    /**
     * An answer to this question, or none. After one that is none nothing is taken from the same
     * connection: the answers there may be one question behind.
     *
     * @internal
     */
    public function read(mixed $value, Question $question, string $field): Answer
    {
        try {
            $answer = Answer::parse($value, $question->requestId);
        } catch (Unavailable $why) {
            $this->transport->close();
            throw $why;
        }
        // Palisade denies a class that no limit covers with 503. Where the application has named
        // the class itself it is misspelt, or missing in the policy.
        if ($answer->rule === 'L-DEFAULT-DENY' && isset($question->wire['class'])) {
            throw new BadFacts("`$field` names a class that no limit of the policy covers", $field);
        }
        return $answer;
    }

    /** @internal */
    public function log(string $message): void
    {
        $this->log === null ? error_log($message) : ($this->log)($message);
    }

    /**
     * The growing delay before a refusal (A-BACKOFF), as long as a slot of this machine is free:
     * each holds a process that others wait for.
     *
     * @internal
     */
    public function pause(Answer $answer): void
    {
        $delay = min($answer->delayMs ?? 0, 10_000);
        for ($number = 0; $delay > 0 && $number < $this->delaysMax; $number++) {
            $user = function_exists('posix_geteuid') ? posix_geteuid() : getmyuid();
            $slot = @fopen(sys_get_temp_dir() . "/palisade-delay-$user-$number", 'c');
            if ($slot !== false && flock($slot, LOCK_EX | LOCK_NB)) {
                usleep($delay * 1000);
                fclose($slot);
                return;
            }
        }
    }

    /** @param array<mixed> $wire */
    private static function value(Reply $reply, #[\SensitiveParameter] array $wire): mixed
    {
        // A settle that the store could not record yet is accepted.
        if ($reply->status === 200 || $reply->status === 202) {
            return $reply->value;
        }
        $problem = is_array($reply->value) ? $reply->value : [];
        $detail = is_string($problem['detail'] ?? null) ? $problem['detail'] : null;
        $field = is_string($problem['field'] ?? null) ? $problem['field'] : null;
        if ($reply->status === 413) {
            $longest = Fields::longest($wire);
            throw self::refused($wire, $longest, "`$longest` is too long");
        }
        throw match ($reply->status) {
            400, 422 => self::refused($wire, $field, $detail ?? 'palisade refused the question'),
            401, 403, 404, 405 => new Misconfigured($detail ?? "palisade answered {$reply->status}: check the URL and `token`"),
            default => new Unavailable("answered {$reply->status}"),
        };
    }

    /** @param array<mixed> $wire */
    private static function refused(#[\SensitiveParameter] array $wire, ?string $field, string $detail): BadFacts
    {
        if (!Fields::areFromClient($field)) {
            return new BadFacts($detail, $field);
        }
        $requestId = is_string($wire['request_id'] ?? null) ? $wire['request_id'] : Question::newId();
        return new BadInput($detail, $field, Answer::badRequest($requestId, $detail, $field));
    }
}
