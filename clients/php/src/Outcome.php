<?php

declare(strict_types=1);

namespace Palisade\Client;

/** How an attempt ended. */
enum Outcome: string
{
    case Failure = 'failure';
    case Success = 'success';
    /** Nothing was verified. The attempt weighs until it runs out (G-PENDING). */
    case Abandoned = 'abandoned';
}
