<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * One question.
 *
 * @internal
 */
final class Call
{
    /** @param array<mixed> $wire */
    public function __construct(
        public readonly string $method,
        public readonly string $path,
        #[\SensitiveParameter] public readonly array $wire,
    ) {
    }
}
