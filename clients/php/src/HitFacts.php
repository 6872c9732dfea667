<?php

declare(strict_types=1);

namespace Palisade\Client;

/** One call of a heavy endpoint (G-API). */
final class HitFacts
{
    public readonly string $requestId;

    public function __construct(
        #[\SensitiveParameter] public readonly string $ip,
        #[\SensitiveParameter] public readonly ?string $account = null,
        public readonly ?Device $device = null,
        #[\SensitiveParameter] public readonly ?string $userAgent = null,
        #[\SensitiveParameter] public readonly ?string $acceptLanguage = null,
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
            'device' => $this->device?->wire() ?: null,
            'user_agent' => Question::headerText($this->userAgent),
            'accept_language' => Question::headerText($this->acceptLanguage),
            'correlation_id' => $this->correlationId,
        ], $this->requestId, ['ip' => $this->ip]);
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return [];
    }
}
