<?php

declare(strict_types=1);

namespace Palisade\Client;

/** A reservation while work goes on, and what the work says of itself. */
final class Reservation
{
    private const AMOUNT_MAX = 2 ** 47;

    /** The decision. */
    public readonly Answer $answer;
    private ?HeldReservation $held = null;
    private float $ends = 0.0;
    private bool $isLost = false;
    private bool $isOpen = true;
    private bool $isReleased = false;
    /** @var array<string, int> */
    private array $said = [];
    private ?Settlement $settled = null;

    /**
     * @param array<string, int> $asked
     * @internal
     */
    public function __construct(
        private readonly Reservations $calls,
        private readonly CheckFacts $facts,
        private readonly OnUnavailable|Caps $choice,
        private readonly array $asked,
        ReserveAnswer $reserved,
        float $since,
    ) {
        $this->answer = $reserved->answer->orThrow();
        $this->hold($reserved->held, $since);
    }

    /**
     * What is reserved, by unit; with `atMost` it may be less than was asked for.
     *
     * @return array<string, int>
     */
    public function reserved(): array
    {
        return $this->held === null ? $this->asked : $this->held->reserved;
    }

    /**
     * True if the reservation has ended, or its place was lost: somebody else may have it, so stop
     * working. Never true of one that `onUnavailable` let through.
     */
    public function expired(): bool
    {
        return $this->held !== null && ($this->isLost || self::now() >= $this->ends);
    }

    /**
     * Says what was used in all, by unit; a later word replaces an earlier one. A unit that is not
     * named, or `null`, was used as reserved.
     *
     * @param array<string, int|null> $costs
     */
    public function used(array $costs): void
    {
        foreach ($costs as $unit => $amount) {
            if (!array_key_exists($unit, $this->reserved())) {
                throw new BadFacts('`costs` names a unit that was not reserved', 'costs');
            }
            if ($amount !== null && ($amount < 0 || $amount > self::AMOUNT_MAX)) {
                throw new BadFacts('`costs` must be whole numbers from 0 to 140737488355328', 'costs');
            }
        }
        $this->isReleased = false;
        $this->said = [...$this->said, ...Question::present($costs)];
    }

    /** Nothing was used: everything goes back when the work has ended. */
    public function release(): void
    {
        $this->isReleased = true;
        $this->said = [];
    }

    /**
     * Reserves more, or to a later end; not `allowed`, the reservation stays as it was. Work that
     * takes longer than its hold must call it in time. Without an answer `onUnavailable` decides.
     *
     * @param array<string, int>|null $costs
     */
    public function extend(?array $costs = null, ?string $hold = null): Extension
    {
        if ($this->held === null) {
            return new Extension(true);
        }
        $since = self::now();
        try {
            $extension = $this->calls->extend($this->held->token, $costs, $hold);
        } catch (Unavailable) {
            return new Extension(OnUnavailable::decide($this->choice, $this->facts->question())->allowed());
        }
        $this->isLost = $this->isLost || $extension->expired || $extension->settled !== null;
        $this->hold($extension->held, $since);
        return $extension;
    }

    /** What the settle was answered, after the work; `null` if it was lost, or nothing was held. */
    public function settled(): ?Settlement
    {
        return $this->settled;
    }

    /**
     * Ends the reservation once.
     *
     * @internal
     */
    public function end(): void
    {
        if ($this->held === null || !$this->isOpen) {
            return;
        }
        $this->isOpen = false;
        $costs = $this->said === [] ? $this->held->reserved : $this->said;
        // Of nothing that was reserved nothing can be settled.
        $this->settled = $this->calls->end($this->held->token, $this->isReleased || $costs === [] ? null : $costs);
    }

    private function hold(?HeldReservation $held, float $since): void
    {
        if ($held !== null) {
            // Whole seconds, rounded down; an end never moves to an earlier time.
            [$this->held, $this->ends] = [$held, max($this->ends, $since + $held->expiresIn)];
        }
    }

    /** @internal */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['reserved' => $this->reserved(), 'expired' => $this->expired()];
    }
}
