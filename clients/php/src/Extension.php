<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The answer to an extension. If it is not `allowed`, the reservation stays as it was, unless it
 * has `expired` or was `settled` before.
 */
final class Extension
{
    /** @internal */
    public function __construct(
        public readonly bool $allowed,
        public readonly bool $expired = false,
        public readonly ?HeldReservation $held = null,
        public readonly ?int $retryAfter = null,
        public readonly ?string $error = null,
        public readonly ?Settlement $settled = null,
    ) {
    }

    /** @internal */
    public static function parse(mixed $value): self
    {
        $found = is_array($value) ? $value : [];
        $decision = $found['decision'] ?? null;
        if ($decision !== 'allow' && $decision !== 'deny') {
            throw new Unavailable('the answer has no decision');
        }
        [$wait, $error] = [$found['retry_after'] ?? null, $found['error'] ?? null];
        return new self(
            $decision === 'allow',
            ($found['expired'] ?? null) === true,
            HeldReservation::parse($found),
            is_int($wait) ? $wait : null,
            is_string($error) ? $error : null,
            is_array($found['settled'] ?? null) ? Settlement::parse($found['settled']) : null,
        );
    }
}
