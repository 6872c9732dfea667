<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * HTTP/1.1 over PHP's streams. A connection is kept for the next question, without TLS also for
 * the next request that this process of PHP-FPM serves.
 *
 * @internal
 */
final class StreamTransport implements Transport
{
    private const IDLE_SECONDS_MAX = 30;

    /** @var array<string, Connection> those in the middle of an exchange, by their names */
    private static array $busy = [];
    private static bool $watched = false;

    private ?Connection $idle = null;
    private int $pid = 0;
    private int $since = 0;

    public function __construct(private readonly Target $target, private readonly Resolver $resolver)
    {
    }

    public function ask(Call $call, Deadline $deadline): Reply
    {
        self::watch();
        $request = $this->target->request($call);
        $name = $this->name();
        $kept = $this->take();
        try {
            $connection = $kept ?? $this->connect($name, $deadline);
            try {
                return $this->exchange($connection, $name, $request, $deadline);
            } catch (Unavailable $failed) {
                $lay = $kept !== null || $connection->isKept;
                if (!$lay || $connection->hasAnswered()) {
                    throw $failed;
                }
                // Closed while it lay idle: nobody has read the question.
                $deadline->left();
                return $this->exchange($this->connect($name, $deadline), $name, $request, $deadline);
            }
        } finally {
            unset(self::$busy[$name]);
        }
    }

    private function exchange(Connection $connection, string $name, string $request, Deadline $deadline): Reply
    {
        self::$busy[$name] = $connection;
        $isWhole = false;
        try {
            $connection->send($request, $deadline);
            [$status, $body, $isWhole] = $connection->receive($deadline);
        } finally {
            // Whatever went wrong, an answer may still be on its way: never used again.
            if ($isWhole) {
                [$this->idle, $this->pid, $this->since] = [$connection, getmypid(), time()];
            } else {
                $connection->close();
            }
        }
        return new Reply($status, json_decode($body, true));
    }

    /** A name that no exchange of this process has: fibers may ask at the same time. */
    private function name(): string
    {
        for ($number = 0; isset(self::$busy["{$this->target->key()}-$number"]); $number++);
        return "{$this->target->key()}-$number";
    }

    private function take(): ?Connection
    {
        [$idle, $this->idle] = [$this->idle, null];
        if ($idle === null || $this->pid !== getmypid()) {
            // Two processes on one connection would read each other's answers.
            return null;
        }
        if (time() - $this->since < self::IDLE_SECONDS_MAX && !$idle->isStale()) {
            return $idle;
        }
        $idle->close();
        return null;
    }

    private function connect(string $name, Deadline $deadline): Connection
    {
        $addresses = $this->resolver->addresses(trim($this->target->host, '[]'), $deadline);
        $failed = new Unavailable('its name is not known');
        foreach ($addresses as $number => $address) {
            try {
                // One address that swallows packets must leave time for the others.
                $share = $deadline->share(count($addresses) - $number);
                return Connection::open($this->target, $address, $name, $share);
            } catch (Unavailable $error) {
                $failed = $error;
            }
        }
        throw $failed;
    }

    public function close(): void
    {
        $this->idle?->close();
        $this->idle = null;
    }

    /** A script that is ended in the middle of an exchange must not leave the rest of it to the next one. */
    private static function watch(): void
    {
        if (!self::$watched) {
            self::$watched = true;
            register_shutdown_function(static function (): void {
                foreach (self::$busy as $connection) {
                    $connection->close();
                }
            });
        }
    }
}
