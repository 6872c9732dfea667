<?php

declare(strict_types=1);

namespace Palisade\Client;

/** What `check`, `peek` and `batch` ask about: `RequestFacts` or `JobFacts`. */
interface CheckFacts
{
    /** @internal */
    public function question(): Question;
}
