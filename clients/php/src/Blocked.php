<?php

declare(strict_types=1);

namespace Palisade\Client;

/** The decision is not `allow`; `answer()` has status, headers and body to send. */
final class Blocked extends PalisadeException implements Refused
{
    public function __construct(private readonly Answer $answer)
    {
        parent::__construct($answer->decision . ': ' . ($answer->rule ?? $answer->error ?? $answer->mode));
    }

    public function answer(): Answer
    {
        return $this->answer;
    }
}
