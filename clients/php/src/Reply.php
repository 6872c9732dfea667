<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Status and JSON of an answer.
 *
 * @internal
 */
final class Reply
{
    public function __construct(public readonly int $status, public readonly mixed $value)
    {
    }
}
