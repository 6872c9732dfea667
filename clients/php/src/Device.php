<?php

declare(strict_types=1);

namespace Palisade\Client;

/** The device of an attempt, as far as the host knows it. `known` and `trusted` are its assertions. */
final class Device
{
    /** @param string|null $confidence in the fingerprint: `low`, `medium` or `high` */
    public function __construct(
        #[\SensitiveParameter] public readonly ?string $sessionId = null,
        #[\SensitiveParameter] public readonly ?string $clientId = null,
        #[\SensitiveParameter] public readonly ?string $fingerprint = null,
        public readonly ?string $confidence = null,
        public readonly ?bool $known = null,
        public readonly ?bool $trusted = null,
    ) {
    }

    /**
     * @return array<string, mixed>
     * @internal
     */
    public function wire(): array
    {
        return Question::present([
            'session_id' => $this->sessionId,
            'client_id' => $this->clientId,
            'fingerprint' => $this->fingerprint,
            'confidence' => $this->confidence,
            'known' => $this->known,
            'trusted' => $this->trusted,
        ]);
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['known' => $this->known, 'trusted' => $this->trusted];
    }
}
