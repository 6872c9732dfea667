<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The set-up cannot work: a wrong caller token, an unknown peer address, a bad option.
 *
 * `onUnavailable` never answers it: a wrong token must be noticed on the first request, not let
 * everything through.
 */
final class Misconfigured extends PalisadeException
{
}
