<?php

declare(strict_types=1);

namespace Palisade\Client;

/** Something to send to the client: a decision that is not `allow`, or a 400. */
interface Refused extends \Throwable
{
    public function answer(): Answer;
}
