<?php

declare(strict_types=1);

namespace Palisade\Client;

/** An attempt that may be verified now. It is a failure until it is something else. */
final class Attempt
{
    public readonly string $requestId;
    private Outcome $outcome = Outcome::Failure;
    private bool $isOpen = true;
    private ?Answer $reported = null;

    /** @internal */
    public function __construct(public readonly Answer $check)
    {
        $this->requestId = $check->requestId;
    }

    /** The credential was right. */
    public function success(): void
    {
        $this->outcome = Outcome::Success;
    }

    /** The credential was wrong. */
    public function failure(): void
    {
        $this->outcome = Outcome::Failure;
    }

    /** Nothing was verified. */
    public function abandon(): void
    {
        $this->outcome = Outcome::Abandoned;
    }

    public function outcome(): Outcome
    {
        return $this->outcome;
    }

    /** What the report was answered; `null` if it was lost or nothing was reported. */
    public function reported(): ?Answer
    {
        return $this->reported;
    }

    /**
     * Ends the attempt once: an attempt whose script ends inside of it is ended by the end.
     *
     * @param callable(Outcome): ?Answer $report
     * @internal
     */
    public function end(callable $report): void
    {
        if ($this->isOpen) {
            $this->isOpen = false;
            $this->reported = $this->outcome === Outcome::Abandoned ? null : $report($this->outcome);
        }
    }
}
