<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

/** A script behind PHP's own web server. */
final class Site
{
    public readonly int $port;
    private Process $process;

    /** @param array<string, string> $environment */
    public function __construct(string $folder, string $script, array $environment = [])
    {
        $this->port = Place::freePort();
        $command = [PHP_BINARY, '-S', "127.0.0.1:{$this->port}", $script];
        $this->process = new Process($command, $folder, $environment);
        for ($end = microtime(true) + 30; !@stream_socket_client("tcp://127.0.0.1:{$this->port}"); usleep(20_000)) {
            if (microtime(true) > $end) {
                throw new \RuntimeException('the site did not start');
            }
        }
    }

    /**
     * Sends a request as it is: the path is not normalised.
     *
     * @param array<string, string> $headers
     * @return array{int, array<string, string>, string} status, headers by lower-case names, body
     */
    public function send(string $method, string $path, array $headers = [], string $body = ''): array
    {
        $socket = stream_socket_client("tcp://127.0.0.1:{$this->port}", $code, $message, 30);
        $lines = array_map(static fn (string $name, string $value): string => "$name: $value\r\n", array_keys($headers), $headers);
        fwrite($socket, "$method $path HTTP/1.0\r\nHost: site\r\nContent-Length: " . strlen($body) . "\r\n" . implode('', $lines) . "\r\n$body");
        stream_set_timeout($socket, 60);
        [$head, $sent] = explode("\r\n\r\n", (string) stream_get_contents($socket), 2);
        $named = [];
        foreach (array_slice(explode("\r\n", $head), 1) as $line) {
            [$name, $value] = explode(': ', $line, 2);
            $named[strtolower($name)] = $value;
        }
        return [(int) substr($head, 9, 3), $named, $sent];
    }

    public function signIn(string $username, string $password): array
    {
        $headers = ['Content-Type' => 'application/x-www-form-urlencoded', 'X-Device' => 'd1'];
        return $this->send('POST', '/session', $headers, http_build_query(['username' => $username, 'password' => $password]));
    }
}
