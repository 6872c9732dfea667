<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Logins and one-time codes: asks before the credential is verified, says how it went.
 *
 * Only `success()` is a success. Whatever else ends `verify`, a return, an exception, `exit` or a
 * time limit of PHP, is reported as a failure: otherwise an attacker would look for the way out
 * that is not counted. `abandon()` says that nothing was verified.
 */
final class Guard
{
    /** @internal */
    public function __construct(private readonly Palisade $palisade, private readonly OnUnavailable|Caps $choice)
    {
    }

    /**
     * A password. `Blocked` is thrown if it may not be verified now.
     *
     * @template T
     * @param callable(Attempt): T $verify
     * @return T
     */
    public function login(AttemptFacts $facts, callable $verify): mixed
    {
        return $this->attempt(Flow::Login, $facts, $verify);
    }

    /**
     * A one-time code. `Blocked` is thrown if it may not be verified now.
     *
     * @template T
     * @param callable(Attempt): T $verify
     * @return T
     */
    public function otp(AttemptFacts $facts, callable $verify): mixed
    {
        return $this->attempt(Flow::Otp, $facts, $verify);
    }

    private function attempt(Flow $flow, AttemptFacts $facts, callable $verify): mixed
    {
        $attempt = new Attempt($this->check($flow, $facts)->orThrow());
        $report = fn (Outcome $outcome): ?Answer => $this->report($flow, $outcome, $facts);
        $end = static fn () => $attempt->end($report);
        return Unfinished::during(static fn (): mixed => $verify($attempt), $end);
    }

    /**
     * Only the check, for a host that spreads an attempt over two requests. The report needs the
     * same facts, with the `requestId` of its answer. A refusal is held back as long as it asks
     * for.
     */
    public function check(Flow $flow, AttemptFacts $facts): Answer
    {
        $answer = $this->palisade->decide("/v1/guard/{$flow->value}/check", $facts->question(), $this->choice);
        if (!$answer->allowed()) {
            $this->palisade->pause($answer);
        }
        return $answer;
    }

    /**
     * Only the outcome; `null` if it could not be reported. It is sent twice if it must and the
     * deadline of the first try allows: the second time changes nothing where the first one
     * arrived.
     */
    public function report(Flow $flow, Outcome $outcome, AttemptFacts $facts): ?Answer
    {
        if ($outcome === Outcome::Abandoned) {
            throw new BadFacts('`outcome` must be a success or a failure', 'outcome');
        }
        $question = $facts->question();
        $deadline = $this->palisade->deadline();
        for ($try = 0; $try < 2; $try++) {
            try {
                $value = $this->palisade->ask('POST', "/v1/guard/{$flow->value}/{$outcome->value}", $question->wire, $deadline);
                $answer = $this->palisade->read($value, $question, 'class');
            } catch (Unavailable) {
                continue;
            }
            if ($outcome === Outcome::Failure) {
                $this->palisade->pause($answer);
            }
            return $answer;
        }
        $this->palisade->log("the {$outcome->value} of a {$flow->value} attempt could not be reported");
        return null;
    }

    /** A session id to keep in a cookie of a device that has just logged in. */
    public function issueSession(#[\SensitiveParameter] string $account): string
    {
        $value = $this->palisade->ask('POST', '/v1/guard/sessions', ['account' => $account]);
        $session = is_array($value) ? $value['session_id'] ?? null : null;
        return is_string($session) && $session !== '' ? $session : throw new Unavailable('the answer has no session');
    }

    /** Revokes one session of an account; how many there were. */
    public function revokeSession(#[\SensitiveParameter] string $account, #[\SensitiveParameter] string $sessionId): int
    {
        return $this->revoke(['account' => $account, 'session_id' => $sessionId]);
    }

    /** Revokes all sessions of an account; how many there were. */
    public function revokeSessions(#[\SensitiveParameter] string $account): int
    {
        return $this->revoke(['account' => $account]);
    }

    /** @param array<string, string> $wire */
    private function revoke(#[\SensitiveParameter] array $wire): int
    {
        $value = $this->palisade->ask('DELETE', '/v1/guard/sessions', $wire);
        return is_array($value) && is_int($value['revoked'] ?? null) ? $value['revoked'] : 0;
    }
}
