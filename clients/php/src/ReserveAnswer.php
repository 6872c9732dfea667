<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The decision about a reservation, and what is held if it was allowed. Nothing is held either if
 * Palisade could not be asked and `onUnavailable` let it through.
 */
final class ReserveAnswer
{
    /** @internal */
    public function __construct(public readonly Answer $answer, public readonly ?HeldReservation $held = null)
    {
    }
}
