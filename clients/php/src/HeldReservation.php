<?php

declare(strict_types=1);

namespace Palisade\Client;

/** A reservation that is held. `token` is sealed: any node takes it. */
final class HeldReservation
{
    /** @param array<string, int> $reserved */
    private function __construct(
        #[\SensitiveParameter] public readonly string $token,
        public readonly int $expiresIn,
        public readonly ?string $expiresAt,
        public readonly array $reserved,
    ) {
    }

    /**
     * What an answer says is held; `null` if it holds nothing.
     *
     * @internal
     */
    public static function parse(mixed $value): ?self
    {
        $found = is_array($value) ? $value : [];
        [$token, $seconds] = [$found['reservation'] ?? null, $found['expires_in'] ?? null];
        if (!is_string($token) || $token === '' || !is_int($seconds)) {
            return null;
        }
        $at = $found['expires_at'] ?? null;
        return new self($token, $seconds, is_string($at) ? $at : null, self::costs($found['reserved'] ?? null));
    }

    /**
     * @return array<string, int>
     * @internal
     */
    public static function costs(mixed $value): array
    {
        return array_filter(is_array($value) ? $value : [], 'is_int');
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['expiresIn' => $this->expiresIn, 'reserved' => $this->reserved];
    }
}
