<?php

declare(strict_types=1);

namespace Palisade\Client;

/** Palisade refused a field of the question; the message names it, never its value. */
class BadFacts extends PalisadeException
{
    public function __construct(string $detail, public readonly ?string $field)
    {
        parent::__construct($detail);
    }
}
