<?php

declare(strict_types=1);

namespace Palisade\Client;

/** A decision with what to send: `status`, `headers` and `body` are ready to copy. */
final class Answer
{
    private const DECISIONS = ['allow', 'soft_block', 'hard_block', 'deny'];
    private const MODES = ['normal', 'fail_closed', 'fail_open', 'degraded'];

    /**
     * @param array<string, string> $headers
     * @param array<string, mixed>|null $body
     * @param list<array<string, mixed>> $limits as they stand; `name`, `limit`, `remaining`, …
     * @param list<array<string, mixed>> $reasons
     * @param array<string, mixed>|null $shadow what a guard in shadow mode would have answered
     * @param string $decidedBy `client` if Palisade could not be asked and `onUnavailable` decided
     */
    public function __construct(
        public readonly string $decision,
        public readonly int $status,
        public readonly string $requestId,
        public readonly string $mode = 'normal',
        public readonly ?string $level = null,
        public readonly ?string $rule = null,
        public readonly ?string $error = null,
        public readonly ?int $retryAfter = null,
        public readonly ?int $delayMs = null,
        public readonly ?string $challenge = null,
        #[\SensitiveParameter] public readonly ?string $receipt = null,
        public readonly ?string $lockout = null,
        public readonly ?array $shadow = null,
        public readonly array $headers = [],
        public readonly ?array $body = null,
        public readonly array $limits = [],
        public readonly array $reasons = [],
        public readonly string $decidedBy = 'palisade',
    ) {
    }

    /** True for `allow` and nothing else. */
    public function allowed(): bool
    {
        return $this->decision === 'allow';
    }

    /** Itself if it allows, else `Blocked` is thrown. */
    public function orThrow(): self
    {
        return $this->allowed() ? $this : throw new Blocked($this);
    }

    /** The body as JSON; empty if there is none. */
    public function json(): string
    {
        return $this->body === null ? '' : json_encode($this->body, JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES);
    }

    /**
     * Every header of a refusal.
     *
     * @return array<string, string>
     */
    public function refusalHeaders(): array
    {
        $type = $this->body === null ? [] : ['Content-Type' => 'application/json'];
        return [...$this->headers, 'X-Request-Id' => $this->requestId, ...$type];
    }

    /**
     * Reads an answer. One that cannot be read, or belongs to another question, counts as none:
     * whatever is not clearly `allow` must never become it.
     *
     * @internal
     */
    public static function parse(mixed $value, string $requestId): self
    {
        if (!is_array($value) || !in_array($value['decision'] ?? null, self::DECISIONS, true)) {
            throw new Unavailable('the answer has no decision');
        }
        $status = $value['status'] ?? null;
        if (!is_int($status) || $status < 200 || $status > 599) {
            throw new Unavailable('the answer has no status');
        }
        if (($value['request_id'] ?? null) !== $requestId) {
            throw new Unavailable('the answer belongs to another request');
        }
        $text = static fn (string $name): ?string => is_string($value[$name] ?? null) ? $value[$name] : null;
        $whole = static fn (string $name): ?int => is_int($value[$name] ?? null) ? $value[$name] : null;
        $array = static fn (string $name): ?array => is_array($value[$name] ?? null) ? $value[$name] : null;
        $mode = $text('mode');
        return new self(
            decision: $value['decision'],
            status: $status,
            requestId: $requestId,
            mode: in_array($mode, self::MODES, true) ? $mode : 'normal',
            level: $text('level'),
            rule: $text('rule'),
            error: $text('error'),
            retryAfter: $whole('retry_after'),
            delayMs: $whole('delay_ms'),
            challenge: $text('challenge'),
            receipt: $text('receipt'),
            lockout: $text('lockout'),
            shadow: $array('shadow'),
            headers: array_filter($array('headers') ?? [], 'is_string'),
            body: $array('body'),
            limits: array_values(array_filter($array('limits') ?? [], 'is_array')),
            reasons: array_values(array_filter($array('reasons') ?? [], 'is_array')),
        );
    }

    /**
     * A decision made here, in the shape of Palisade's own during an outage.
     *
     * @internal
     */
    public static function local(bool $allow, string $mode, string $requestId, float $wait = 0): self
    {
        $headers = ['X-RateLimit-Status' => 'degraded'];
        if ($allow) {
            return new self('allow', 200, $requestId, $mode, headers: $headers, decidedBy: 'client');
        }
        $closed = $mode === 'fail_closed';
        $error = $closed ? 'service_unavailable' : 'rate_limit_exceeded';
        $seconds = max(1, (int) ceil($wait));
        return new self(
            decision: 'deny',
            status: $closed ? 503 : 429,
            requestId: $requestId,
            mode: $mode,
            error: $error,
            retryAfter: $seconds,
            headers: [...$headers, 'Retry-After' => (string) $seconds],
            body: [
                'error' => $error,
                'message' => $closed
                    ? 'The request cannot be checked now. Please try again later.'
                    : 'Too many requests. Please try again later.',
                'code' => 'throttling.enforcement_degraded',
                'retry_after' => $seconds,
                'request_id' => $requestId,
                'timestamp' => gmdate('Y-m-d\TH:i:s\Z'),
            ],
            decidedBy: 'client',
        );
    }

    /**
     * The refusal of a request that cannot be read; it names the field, never its value.
     *
     * @internal
     */
    public static function badRequest(string $requestId, string $message, ?string $field): self
    {
        return new self(
            decision: 'deny',
            status: 400,
            requestId: $requestId,
            error: 'bad_request',
            body: [
                'error' => 'bad_request',
                'message' => $message,
                'code' => 'request.malformed',
                ...($field === null ? [] : ['field' => $field]),
                'request_id' => $requestId,
                'timestamp' => gmdate('Y-m-d\TH:i:s\Z'),
            ],
            decidedBy: 'client',
        );
    }

    /**
     * Headers of several answers about one request. Of a name that more than one has, the
     * refusing answer's wins, else that of the answer whose nearest limit has the smallest share
     * left (L-CONSTRAINT).
     *
     * @param list<self> $answers
     * @return array<string, string>
     * @internal
     */
    public static function mergedHeaders(array $answers): array
    {
        usort($answers, static fn (self $one, self $other): int => $other->room() <=> $one->room());
        return array_merge(...array_map(static fn (self $answer): array => $answer->headers, $answers), ...[[]]);
    }

    /** @return array{bool, float} */
    private function room(): array
    {
        $least = 2.0;
        foreach ($this->limits as $reading) {
            [$limit, $left] = [$reading['limit'] ?? null, $reading['remaining'] ?? null];
            if (is_int($limit) && is_int($left) && $limit > 0 && ($reading['shadow'] ?? false) !== true) {
                $least = min($least, $left / $limit);
            }
        }
        return [$this->allowed(), $least];
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['decision' => $this->decision, 'status' => $this->status, 'rule' => $this->rule];
    }
}
