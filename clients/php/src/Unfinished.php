<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Work that must be ended whatever ends the script: `exit` and the time limit of PHP pass by
 * `finally`.
 *
 * @internal
 */
final class Unfinished
{
    /** @var array<int, \Closure>|null the ends of what goes on now */
    private static ?array $ends = null;

    /**
     * Does the work and then calls `end`; what `exit` interrupts is ended by the end of the script.
     *
     * @template T
     * @param callable(): T $work
     * @return T
     */
    public static function during(callable $work, \Closure $end): mixed
    {
        if (self::$ends === null) {
            self::$ends = [];
            register_shutdown_function(static function (): void {
                foreach (self::$ends ?? [] as $end) {
                    $end();
                }
            });
        }
        self::$ends[] = $end;
        $number = array_key_last(self::$ends);
        try {
            return $work();
        } finally {
            unset(self::$ends[$number]);
            $end();
        }
    }
}
