<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The way to Palisade.
 *
 * @internal
 */
interface Transport
{
    /** One exchange; `Unavailable` is thrown if there is no answer. */
    public function ask(Call $call, Deadline $deadline): Reply;

    /** Closes what is kept: an answer may still be on its way there. */
    public function close(): void;
}
