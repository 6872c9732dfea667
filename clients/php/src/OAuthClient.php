<?php

declare(strict_types=1);

namespace Palisade\Client;

/** The OAuth client that a request names (L-CLIENT). */
final class OAuthClient
{
    /** @param string|null $type `confidential` or `public` */
    public function __construct(#[\SensitiveParameter] public readonly string $id, public readonly ?string $type = null)
    {
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['type' => $this->type];
    }
}
