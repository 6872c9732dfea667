<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Bounds that hold while Palisade cannot be asked: at most `perKey` for each address, account,
 * organisation, user or token, and `total` for all together, in any `window` seconds.
 *
 * `file` is what the processes of one machine share; PHP-FPM forgets everything else with each
 * request. `null` counts in this process, for workers that live long.
 */
final class Caps
{
    private const LOCK_NS_MAX = 50_000_000;

    /** @var array{secret: string, admitted: list<array{float, list<string>}>}|null */
    private ?array $state = null;

    /** @param (\Closure(): float)|null $clock seconds */
    public function __construct(
        private readonly int $perKey,
        private readonly int $total,
        private readonly float $window,
        private readonly ?string $file,
        private readonly ?\Closure $clock = null,
    ) {
        if ($perKey < 1 || $total < 1 || !($window > 0) || is_infinite($window)) {
            throw new Misconfigured('`perKey`, `total` and `window` of `Caps` must be positive');
        }
        if ($file !== null && !is_writable(file_exists($file) ? $file : dirname($file))) {
            throw new Misconfigured('`file` of `Caps` must be a file that this process may write');
        }
    }

    /**
     * Counts one on every subject, or on none: then it returns the seconds to wait.
     *
     * @param list<string> $subjects
     * @internal
     */
    public function take(#[\SensitiveParameter] array $subjects): float
    {
        if ($this->file === null) {
            return $this->counted($this->state, $subjects);
        }
        $file = @fopen($this->file, 'c+');
        if ($file === false || !self::locked($file)) {
            // Bounds that cannot be kept let nobody through.
            return 1;
        }
        @chmod($this->file, 0600);
        $state = json_decode((string) stream_get_contents($file), true);
        $state = is_array($state) && isset($state['secret'], $state['admitted']) ? $state : null;
        $wait = $this->counted($state, $subjects);
        $text = json_encode($state, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION);
        $kept = rewind($file) && ftruncate($file, 0) && fwrite($file, $text) === strlen($text);
        fclose($file);
        return $kept ? $wait : max($wait, 1);
    }

    /** @param resource $file */
    private static function locked($file): bool
    {
        for ($end = hrtime(true) + self::LOCK_NS_MAX; hrtime(true) < $end; usleep(500)) {
            if (flock($file, LOCK_EX | LOCK_NB)) {
                return true;
            }
        }
        return false;
    }

    /**
     * The state holds what was let through inside the window, oldest first: never more than
     * `total`, whatever comes.
     *
     * @param array{secret: string, admitted: list<array{float, list<string>}>}|null $state
     * @param list<string> $subjects
     */
    private function counted(?array &$state, array $subjects): float
    {
        $state ??= ['secret' => bin2hex(random_bytes(16)), 'admitted' => []];
        $now = $this->clock === null ? hrtime(true) / 1e9 : ($this->clock)();
        // A time in the future is from before the machine was started.
        $inside = fn (array $one): bool => $one[0] <= $now && $one[0] + $this->window > $now;
        $admitted = array_values(array_filter($state['admitted'], $inside));
        $keys = array_map(fn (string $subject): string => self::digest($subject, $state['secret']), $subjects);
        $logs = [count($admitted) >= $this->total ? $admitted[0][0] : null];
        foreach ($keys as $key) {
            $log = array_values(array_filter($admitted, static fn (array $one): bool => in_array($key, $one[1], true)));
            $logs[] = count($log) >= $this->perKey ? $log[0][0] : null;
        }
        $full = array_filter($logs, static fn (?float $oldest): bool => $oldest !== null);
        $wait = $full === [] ? 0.0 : max($full) + $this->window - $now;
        if ($wait <= 0) {
            $admitted[] = [$now, $keys];
        }
        $state['admitted'] = $admitted;
        return max(0.0, $wait);
    }

    /** A digest, so that neither memory nor the file holds an identifier. */
    private static function digest(string $subject, string $secret): string
    {
        [$kind, $value] = explode(' ', $subject, 2);
        $prefix = $kind === 'ip' ? TrustedProxies::prefix($value) : $value;
        return substr(hash_hmac('sha256', "$kind $prefix", $secret), 0, 32);
    }
}
