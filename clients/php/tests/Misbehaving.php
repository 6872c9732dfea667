<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

/** The servers of `misbehaving.py`. */
final class Misbehaving
{
    /** @var array<string, string> */
    public readonly array $urls;
    private Process $process;

    public function __construct()
    {
        $this->process = new Process(['python3', Place::conformance() . '/misbehaving.py']);
        $this->urls = json_decode($this->process->line(), true, flags: JSON_THROW_ON_ERROR);
    }
}
