<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Where Palisade listens, and how to talk to it.
 *
 * @internal
 */
final class Target
{
    private function __construct(
        public readonly bool $secure,
        public readonly string $host,
        public readonly int $port,
        #[\SensitiveParameter] private readonly ?string $token,
        /** @var array<string, mixed> */
        public readonly array $tls,
    ) {
    }

    /** @param array<string, mixed> $tls PHP's `ssl` context options */
    public static function of(string $url, #[\SensitiveParameter] ?string $token, array $tls): self
    {
        $form = '~^(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(\d{1,5}))?/?$~i';
        if (preg_match($form, $url, $parts) !== 1 || (int) ($parts[3] ?? 0) > 65535) {
            throw new Misconfigured('the URL must look like `http://127.0.0.1:8080`');
        }
        if ($token !== null && preg_match('/^[\x21-\x7e]+$/D', $token) !== 1) {
            throw new Misconfigured('`token` must be printable ASCII without spaces or line ends');
        }
        $secure = strtolower($parts[1]) === 'https';
        $port = (int) ($parts[3] ?? 0) ?: ($secure ? 443 : 80);
        return new self($secure, $parts[2], $port, $token, $tls);
    }

    /** The bytes of a question. */
    public function request(Call $call): string
    {
        $body = json_encode($call->wire ?: new \stdClass(), JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
        $caller = $this->token === null ? '' : "X-Palisade-Caller: {$this->token}\r\n";
        return "{$call->method} {$call->path} HTTP/1.1\r\nHost: {$this->host}:{$this->port}\r\n"
            . "Content-Type: application/json\r\n{$caller}Content-Length: " . strlen($body) . "\r\n\r\n{$body}";
    }

    /** Names the connections that may be shared: the same server, the same certificates, one process. */
    public function key(): string
    {
        return 'palisade-' . getmypid() . '-' . substr(hash('sha256', serialize([$this->host, $this->tls])), 0, 16);
    }
}
