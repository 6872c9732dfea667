<?php

declare(strict_types=1);

namespace Palisade\Client;

/** The refused field holds what a client sent; `answer()` is the 400 to send. */
final class BadInput extends BadFacts implements Refused
{
    public function __construct(string $detail, ?string $field, private readonly Answer $answer)
    {
        parent::__construct($detail, $field);
    }

    public function answer(): Answer
    {
        return $this->answer;
    }
}
