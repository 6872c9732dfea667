<?php

declare(strict_types=1);

namespace Palisade\Client;

/** What happens when Palisade cannot be asked. A `Caps` is the third choice; there is no default. */
enum OnUnavailable
{
    /** Refuse with 503: for what must not happen unlimited. */
    case Closed;
    /** Let through: for what is worth more than its limit. */
    case Open;

    /** @internal */
    public static function decide(self|Caps $choice, Question $question): Answer
    {
        if ($choice instanceof Caps) {
            $wait = $choice->take($question->subjects);
            return Answer::local($wait <= 0, 'degraded', $question->requestId, $wait);
        }
        $open = $choice === self::Open;
        return Answer::local($open, $open ? 'fail_open' : 'fail_closed', $question->requestId, wait: 5);
    }
}
