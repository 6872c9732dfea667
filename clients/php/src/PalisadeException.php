<?php

declare(strict_types=1);

namespace Palisade\Client;

/** Base of everything this package throws. */
abstract class PalisadeException extends \RuntimeException
{
}
