<?php

declare(strict_types=1);

namespace Palisade\Client;

/** The answer to a settle or a release; a second one gets the first answer again. */
final class Settlement
{
    /**
     * @param bool $recorded false while the store is away: the server tries again by itself
     * @param bool $late it came too late to change anything
     * @param array<string, int> $used
     * @param array<string, int> $reserved
     * @param array<string, int> $over what was used beyond what was reserved
     */
    private function __construct(
        public readonly bool $recorded,
        public readonly bool $late,
        public readonly array $used,
        public readonly array $reserved,
        public readonly array $over,
    ) {
    }

    /** @internal */
    public static function parse(mixed $value): self
    {
        if (!is_array($value) || !is_bool($value['recorded'] ?? null)) {
            throw new Unavailable('the answer is not that of a settle');
        }
        $costs = static fn (string $name): array => HeldReservation::costs($value[$name] ?? null);
        return new self(
            $value['recorded'],
            ($value['late'] ?? null) === true,
            $costs('used'),
            $costs('reserved'),
            $costs('over'),
        );
    }
}
