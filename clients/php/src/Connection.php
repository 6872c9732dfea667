<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * One connection that does not block, and what was read of it.
 *
 * @internal
 */
final class Connection
{
    private const READ_BYTES = 65_536;
    private const HEAD_BYTES_MAX = 65_536;
    private const ANSWER_BYTES_MAX = 16 << 20;

    private string $buffer = '';
    private bool $answered = false;

    /** @param resource $stream */
    private function __construct(private $stream, public readonly bool $isKept)
    {
    }

    /**
     * A connection of this process that lies idle, or a new one. PHP keeps it under its name for
     * the requests that come after this one.
     */
    public static function open(Target $target, string $address, string $name, Deadline $deadline): self
    {
        $host = str_contains($address, ':') ? "[$address]" : $address;
        $context = stream_context_create(['ssl' => [
            'peer_name' => trim($target->host, '[]'),
            'capture_session_meta' => false,
            ...$target->tls,
        ]]);
        $flags = STREAM_CLIENT_CONNECT | ($target->secure ? 0 : STREAM_CLIENT_PERSISTENT);
        $at = "tcp://{$host}:{$target->port}" . ($target->secure ? '' : "/$name");
        $stream = @stream_socket_client($at, $code, $message, $deadline->left(), $flags, $context);
        if ($stream === false) {
            $deadline->left();
            throw new Unavailable('it cannot be reached');
        }
        stream_set_blocking($stream, false);
        // PHP counts the bytes of a stream: one that has any was used before.
        $connection = new self($stream, ftell($stream) > 0);
        if ($connection->isKept && $connection->isStale()) {
            $connection->close();
            return self::open($target, $address, $name, $deadline);
        }
        if ($target->secure) {
            $connection->encrypt($deadline);
        }
        return $connection;
    }

    private function encrypt(Deadline $deadline): void
    {
        while (($done = @stream_socket_enable_crypto($this->stream, true, STREAM_CRYPTO_METHOD_TLS_CLIENT)) === 0) {
            $deadline->await([$this->stream]);
        }
        if ($done === false) {
            $this->close();
            throw new Unavailable('it cannot be reached: TLS');
        }
    }

    /** Between exchanges the only thing to read is the end, or an answer that nobody waits for. */
    public function isStale(): bool
    {
        if (!is_resource($this->stream)) {
            // Another client of this process shared it and closed it.
            return true;
        }
        $read = [$this->stream];
        $none = null;
        return @stream_select($read, $none, $none, 0) !== 0;
    }

    /** Any byte of the answer to the last question has arrived. */
    public function hasAnswered(): bool
    {
        return $this->answered;
    }

    public function close(): void
    {
        if (is_resource($this->stream)) {
            fclose($this->stream);
        }
    }

    public function send(string $bytes, Deadline $deadline): void
    {
        $this->answered = false;
        while ($bytes !== '') {
            $sent = @fwrite($this->stream, $bytes);
            if ($sent === false || ($sent === 0 && feof($this->stream))) {
                throw new Unavailable('the connection was closed before the question');
            }
            $bytes = substr($bytes, $sent);
            if ($bytes !== '') {
                $deadline->await([], [$this->stream]);
            }
        }
    }

    /**
     * Reads one answer.
     *
     * @return array{int, string, bool} status, body, and whether the connection can be used again
     */
    public function receive(Deadline $deadline): array
    {
        do {
            [$status, $headers, $version] = $this->head($deadline);
        } while ($status < 200);
        $tokens = strtolower($headers['connection'] ?? '');
        $keeps = $version === '1' && !str_contains($tokens, 'close');
        if (isset($headers['transfer-encoding'])) {
            $isChunked = strtolower($headers['transfer-encoding']) === 'chunked';
            $body = $isChunked && !isset($headers['content-length']) ? $this->chunks($deadline) : throw self::notHttp();
        } else {
            $length = $headers['content-length'] ?? '';
            $body = preg_match('/^\d{1,9}$/D', $length) === 1 ? $this->take((int) $length, $deadline) : throw self::notHttp();
        }
        return [$status, $body, $keeps && $this->buffer === ''];
    }

    /** @return array{int, array<string, string>, string} status, headers, minor version */
    private function head(Deadline $deadline): array
    {
        $lines = explode("\r\n", $this->until("\r\n\r\n", $deadline));
        if (preg_match('~^HTTP/1\.([01]) (\d{3})(?: |$)~', array_shift($lines), $line) !== 1) {
            throw self::notHttp();
        }
        $headers = [];
        foreach ($lines as $header) {
            if (preg_match('/^([!#$%&\'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*$/D', $header, $parts) !== 1) {
                throw self::notHttp();
            }
            $name = strtolower($parts[1]);
            // Joined, two lengths are none: an answer has one end.
            $headers[$name] = isset($headers[$name]) ? "{$headers[$name]},{$parts[2]}" : $parts[2];
        }
        return [(int) $line[2], $headers, $line[1]];
    }

    private function chunks(Deadline $deadline): string
    {
        $body = '';
        do {
            $size = $this->until("\r\n", $deadline);
            if (preg_match('/^[0-9a-fA-F]{1,7}(?:;|$)/', $size) !== 1) {
                throw self::notHttp();
            }
            $length = (int) hexdec(explode(';', $size)[0]);
            $body .= $this->take($length, $deadline);
            if (strlen($body) > self::ANSWER_BYTES_MAX) {
                throw new Unavailable('the answer is too large');
            }
        } while ($length > 0 && $this->until("\r\n", $deadline) === '');
        if ($length > 0 || $this->until("\r\n", $deadline) !== '') {
            throw self::notHttp();
        }
        return $body;
    }

    private function until(string $end, Deadline $deadline): string
    {
        while (($at = strpos($this->buffer, $end)) === false) {
            if (strlen($this->buffer) > self::HEAD_BYTES_MAX) {
                throw self::notHttp();
            }
            $this->read($deadline);
        }
        $found = substr($this->buffer, 0, $at);
        $this->buffer = substr($this->buffer, $at + strlen($end));
        return $found;
    }

    private function take(int $length, Deadline $deadline): string
    {
        if ($length > self::ANSWER_BYTES_MAX) {
            throw new Unavailable('the answer is too large');
        }
        while (strlen($this->buffer) < $length) {
            $this->read($deadline);
        }
        $found = substr($this->buffer, 0, $length);
        $this->buffer = substr($this->buffer, $length);
        return $found;
    }

    private function read(Deadline $deadline): void
    {
        // Before the wait: TLS may hold bytes that the socket no longer has.
        while (($bytes = @fread($this->stream, self::READ_BYTES)) === '') {
            if (feof($this->stream)) {
                break;
            }
            $deadline->await([$this->stream]);
        }
        if ($bytes === '' || $bytes === false) {
            throw new Unavailable('the connection was closed before the answer');
        }
        $deadline->left();
        $this->answered = true;
        $this->buffer .= $bytes;
    }

    private static function notHttp(): Unavailable
    {
        return new Unavailable('the answer is not HTTP');
    }
}
