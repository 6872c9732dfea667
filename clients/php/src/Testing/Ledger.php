<?php

declare(strict_types=1);

namespace Palisade\Client\Testing;

/**
 * The reservations of a test double, by token: no limit counts them, and only `expire` ends them.
 *
 * @internal
 */
final class Ledger
{
    /** @var array<string, array<string, int>> */
    private array $reserved = [];
    /** @var array<string, true> */
    private array $expired = [];
    /** @var array<string, array<string, mixed>> first answers to settles, which later ones get again */
    private array $settled = [];

    /** All that is reserved so far has ended. */
    public function expire(): void
    {
        $this->expired = array_fill_keys(array_keys($this->reserved), true);
    }

    /**
     * Adds what a question about a reservation is answered besides its decision.
     *
     * @param array<string, mixed> $facts
     * @param array<string, mixed> $answer
     * @return array<string, mixed>
     */
    public function join(string $op, array $facts, array $answer): array
    {
        return match ($op) {
            'reserve' => $answer['decision'] === 'allow' ? [...$answer, ...$this->take($facts)] : $answer,
            'extend' => [...$answer, ...$this->extend($facts, $answer['decision'] === 'allow')],
            'settle', 'release' => ['request_id' => $answer['request_id'], ...$this->settle($facts)],
            default => $answer,
        };
    }

    /**
     * @param array<string, mixed> $facts
     * @return array<string, mixed>
     */
    private function take(array $facts): array
    {
        $token = 'reservation-' . (count($this->reserved) + 1);
        $this->reserved[$token] = $facts['costs'] ?? ['requests' => $facts['cost'] ?? 1];
        return $this->held($token);
    }

    /** @return array<string, mixed> */
    private function held(string $token): array
    {
        return ['reservation' => $token, 'expires_in' => 3600, 'reserved' => $this->reserved[$token]];
    }

    /**
     * @param array<string, mixed> $facts
     * @return array<string, mixed>
     */
    private function extend(array $facts, bool $allowed): array
    {
        $token = $facts['reservation'];
        if (!isset($this->reserved[$token]) || isset($this->expired[$token])) {
            return ['decision' => 'deny', 'expired' => true];
        }
        if (isset($this->settled[$token])) {
            return ['decision' => 'deny', 'settled' => $this->settled[$token]];
        }
        if (!$allowed) {
            return [];
        }
        foreach ($facts['costs'] ?? [] as $unit => $more) {
            $this->reserved[$token][$unit] = ($this->reserved[$token][$unit] ?? 0) + $more;
        }
        return $this->held($token);
    }

    /**
     * @param array<string, mixed> $facts
     * @return array<string, mixed>
     */
    private function settle(array $facts): array
    {
        $token = $facts['reservation'];
        $reserved = $this->reserved[$token] ?? [];
        $said = isset($facts['costs']) ? (array) $facts['costs'] : array_fill_keys(array_keys($reserved), 0);
        $used = [...$reserved, ...array_intersect_key($said, $reserved)];
        $over = [];
        foreach ($used as $unit => $amount) {
            if ($amount > $reserved[$unit]) {
                $over[$unit] = $amount - $reserved[$unit];
            }
        }
        return $this->settled[$token] ??= [
            'recorded' => true, 'late' => false, 'used' => $used, 'reserved' => $reserved, 'over' => $over,
        ];
    }
}
