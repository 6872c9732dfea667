<?php

declare(strict_types=1);

namespace Palisade\Client;

/** Palisade could not be asked, or did not answer before the deadline. */
final class Unavailable extends PalisadeException
{
}
