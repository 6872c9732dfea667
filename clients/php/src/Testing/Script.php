<?php

declare(strict_types=1);

namespace Palisade\Client\Testing;

use Palisade\Client\Call;
use Palisade\Client\Deadline;
use Palisade\Client\Reply;
use Palisade\Client\Transport;
use Palisade\Client\Unavailable;

/**
 * What a test double answers, and what it was asked.
 *
 * @internal
 */
final class Script implements Transport
{
    public bool $isAway = false;
    /** @var list<array{op: string, facts: array<string, mixed>}> */
    public array $asked = [];
    /** @var list<array{op: string, facts: array<string, mixed>, wait: int, after: int, decision: string}> */
    private array $refusals = [];
    public readonly Ledger $reservations;

    public function __construct()
    {
        $this->reservations = new Ledger();
    }

    /** @param array<string, mixed> $facts */
    public function refuse(string $op, array $facts, int $wait, int $after, string $decision): void
    {
        $this->refusals[] = ['op' => $op, 'facts' => $facts, 'wait' => $wait, 'after' => $after, 'decision' => $decision];
    }

    public function ask(Call $call, Deadline $deadline): Reply
    {
        if ($this->isAway) {
            throw new Unavailable('the test double has gone away');
        }
        $facts = $call->wire;
        return new Reply(200, match ($call->path) {
            '/v1/batch' => ['answers' => array_map(fn (array $each): array => $this->decided('/v1/check', $each), $facts['checks'])],
            '/v1/refund' => ['refunded' => true],
            '/v1/guard/sessions' => ['session_id' => "session-{$facts['account']}", 'revoked' => 1],
            default => $this->decided($call->path, $facts),
        });
    }

    public function close(): void
    {
    }

    /**
     * @param array<string, mixed> $facts
     * @return array<string, mixed>
     */
    private function decided(string $path, array $facts): array
    {
        $step = str_starts_with($path, '/v1/guard/') ? strtr(substr($path, 10), '/', '.') : null;
        $reservation = in_array($path, ['/v1/reserve', '/v1/extend', '/v1/settle', '/v1/release'], true);
        $op = $step ?? ($reservation ? substr($path, 4) : $facts['op'] ?? 'request');
        $this->asked[] = ['op' => $op, 'facts' => $facts];
        $answer = ['decision' => 'allow', 'status' => 200, 'request_id' => $facts['request_id']];
        if ($op === 'job.enqueue' || ($facts['receipt'] ?? false) === true) {
            $answer['receipt'] = 'receipt-' . count($this->asked);
        }
        // Every refusal counts the question, the first one that refuses it answers.
        $refusing = null;
        foreach ($this->refusals as &$refusal) {
            $isMeant = $refusal['op'] === $op && array_intersect_key($facts, $refusal['facts']) == $refusal['facts'];
            if ($isMeant && $refusal['after']-- <= 0) {
                $refusing ??= $refusal;
            }
        }
        $decided = [...$answer, ...($refusing === null ? [] : self::refused($refusing, $facts['request_id']))];
        return $this->reservations->join($op, $facts, $decided);
    }

    /**
     * @param array{decision: string, wait: int} $refusal
     * @return array<string, mixed>
     */
    private static function refused(array $refusal, string $requestId): array
    {
        return [
            'decision' => $refusal['decision'],
            'status' => 429,
            'retry_after' => $refusal['wait'],
            'error' => 'rate_limit_exceeded',
            'headers' => ['Retry-After' => (string) $refusal['wait']],
            'body' => [
                'error' => 'rate_limit_exceeded',
                'message' => 'Too many requests. Please try again later.',
                'retry_after' => $refusal['wait'],
                'request_id' => $requestId,
            ],
        ];
    }
}
