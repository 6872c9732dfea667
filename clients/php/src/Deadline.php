<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The end of a question, whatever it waits for.
 *
 * @internal
 */
final class Deadline
{
    private function __construct(private readonly float $end)
    {
    }

    public static function in(float $seconds): self
    {
        return new self(hrtime(true) / 1e9 + $seconds);
    }

    /** Seconds left; `Unavailable` is thrown if there are none. */
    public function left(): float
    {
        $left = $this->end - hrtime(true) / 1e9;
        return $left > 0 ? $left : throw new Unavailable('no answer before the deadline');
    }

    /** The part of what is left that one of several tries may take. */
    public function share(int $tries): self
    {
        return self::in($this->left() / max(1, $tries));
    }

    /**
     * Waits until one of the streams can be read or written.
     *
     * @param list<resource> $read
     * @param list<resource> $write
     * @return list<resource> those that can be read
     */
    public function await(array $read, array $write = []): array
    {
        $left = $this->left();
        $none = null;
        // A signal ends the wait early: whoever asked looks again.
        $ready = @stream_select($read, $write, $none, (int) $left, (int) (fmod($left, 1) * 1e6));
        if ($ready === 0) {
            $this->left();
        }
        return $ready === false ? [] : array_values($read);
    }
}
