<?php

declare(strict_types=1);

namespace Palisade\Client;

/** Whom authentication found. `token` is the token's id, never the token. */
final class Identity
{
    /** @param list<string>|null $scopes */
    public function __construct(
        #[\SensitiveParameter] public readonly ?string $org = null,
        #[\SensitiveParameter] public readonly ?string $user = null,
        #[\SensitiveParameter] public readonly ?string $token = null,
        public readonly ?array $scopes = null,
        #[\SensitiveParameter] public readonly ?string $apiKey = null,
    ) {
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['scopes' => $this->scopes];
    }
}
