<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * One attempt with a password or a code. `username` (as typed) is what the lockout counts on:
 * without it there is no lockout and no delay.
 */
final class AttemptFacts
{
    public readonly string $requestId;

    public function __construct(
        #[\SensitiveParameter] public readonly string $ip,
        #[\SensitiveParameter] public readonly string $account,
        #[\SensitiveParameter] public readonly ?string $username = null,
        public readonly ?Device $device = null,
        #[\SensitiveParameter] public readonly ?string $userAgent = null,
        #[\SensitiveParameter] public readonly ?string $acceptLanguage = null,
        public readonly ?bool $challengePassed = null,
        ?string $requestId = null,
        public readonly ?string $correlationId = null,
    ) {
        $this->requestId = $requestId ?? Question::newId();
    }

    /** @internal */
    public function question(): Question
    {
        return Question::of([
            'ip' => $this->ip,
            'account' => $this->account,
            'username' => $this->username,
            'device' => $this->device?->wire() ?: null,
            'user_agent' => Question::headerText($this->userAgent),
            'accept_language' => Question::headerText($this->acceptLanguage),
            'challenge_passed' => $this->challengePassed,
            'correlation_id' => $this->correlationId,
        ], $this->requestId, ['account' => $this->account, 'ip' => $this->ip]);
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['challengePassed' => $this->challengePassed];
    }
}
