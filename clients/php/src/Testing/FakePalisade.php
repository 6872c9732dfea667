<?php

declare(strict_types=1);

namespace Palisade\Client\Testing;

use Palisade\Client\Palisade;
use Palisade\Client\Target;
use Palisade\Client\Transport;

/**
 * A `Palisade` without the network, for tests of your application. Everything else is the real
 * client. It allows everything until it is told otherwise, and remembers what it was asked.
 */
final class FakePalisade extends Palisade
{
    private const OPS = [
        'request', 'job.enqueue', 'api.hit', 'login.check', 'login.failure', 'login.success',
        'otp.check', 'otp.failure', 'otp.success', 'reserve', 'extend',
    ];

    private Script $script;

    public function __construct()
    {
        $this->script = new Script();
        parent::__construct('http://palisade.test', log: static function (): void {
        });
    }

    /** @internal */
    protected function transport(Target $target): Transport
    {
        return $this->script;
    }

    /**
     * From now on refuses questions of this kind whose facts have these values, with 429. The
     * first `after` of them pass.
     *
     * @param string $op `request`, `job.enqueue`, `api.hit`, `login.check`, `reserve`, …
     * @param array<string, mixed> $facts named as on the wire
     */
    public function refuse(
        string $op,
        array $facts = [],
        int $retryAfter = 60,
        int $after = 0,
        string $decision = 'deny',
    ): void {
        if (!in_array($op, self::OPS, true) || !in_array($decision, ['deny', 'soft_block', 'hard_block'], true)) {
            throw new \InvalidArgumentException('`op` or `decision` is not one that can be refused');
        }
        $this->script->refuse($op, $facts, $retryAfter, $after, $decision);
    }

    /** From now on nobody answers: `onUnavailable` decides. */
    public function goAway(): void
    {
        $this->script->isAway = true;
    }

    /** From now on questions are answered again. */
    public function comeBack(): void
    {
        $this->script->isAway = false;
    }

    /** Ends what is reserved so far: extensions say so. */
    public function expire(): void
    {
        $this->script->reservations->expire();
    }

    /**
     * Every question, in its order.
     *
     * @return list<array{op: string, facts: array<string, mixed>}>
     */
    public function asked(): array
    {
        return $this->script->asked;
    }

    /**
     * What was asked, without the facts.
     *
     * @return list<string>
     */
    public function ops(): array
    {
        return array_column($this->script->asked, 'op');
    }
}
