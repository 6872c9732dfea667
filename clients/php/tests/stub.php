<?php

// A server that answers in the way of its first argument, each connection in a process of its
// own. Prints where it listens, and ends with its standard input.

declare(strict_types=1);

pcntl_async_signals(true);
pcntl_signal(SIGCHLD, SIG_IGN);
$listener = stream_socket_server('tcp://127.0.0.1:0') ?: exit(1);
echo stream_socket_get_name($listener, false), "\n";

function question($connection): ?array
{
    for ($head = ''; !str_contains($head, "\r\n\r\n"); $head .= $byte) {
        $byte = fread($connection, 1);
        if ($byte === '' || $byte === false) {
            return null;
        }
    }
    preg_match('/content-length: (\d+)/i', $head, $length);
    return json_decode((string) stream_get_contents($connection, (int) $length[1]), true);
}

function answered(string $how, string $json, int $number): string
{
    $half = intdiv(strlen($json), 2);
    $plain = 'Content-Length: ' . strlen($json) . "\r\n\r\n$json";
    return match ($how) {
        'chunked' => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" . dechex($half) . ";a=b\r\n" . substr($json, 0, $half)
            . "\r\n" . dechex(strlen($json) - $half) . "\r\n" . substr($json, $half) . "\r\n0\r\n\r\n",
        'interim' => "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n$plain",
        'two_lengths' => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n$plain",
        'both_lengths' => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n$plain",
        'no_length' => "HTTP/1.1 200 OK\r\n\r\n$json",
        'folded' => "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n$plain",
        'endless_head' => "HTTP/1.1 200 OK\r\n" . str_repeat("A: b\r\n", 20_000),
        'accepted' => "HTTP/1.1 202 Accepted\r\n$plain",
        default => "HTTP/1.1 200 OK\r\n$plain",
    };
}

function serve($connection, string $how): void
{
    for ($number = 0; ($asked = question($connection)) !== null; $number++) {
        $id = $asked['request_id'] ?? null;
        $json = json_encode(['decision' => 'allow', 'status' => 200, 'request_id' => $id, 'rule' => (string) getmypid(), 'recorded' => false]);
        if ($how === 'late' && ($asked['user'] ?? '') === 'late') {
            sleep(2);
        }
        // One answer more than was asked for: whatever is read next is a question behind.
        fwrite($connection, answered($how, $json, $number) . ($how === 'twice' ? answered($how, $json, $number) : ''));
    }
}

stream_set_blocking(STDIN, false);
while (true) {
    $read = [$listener, STDIN];
    $none = null;
    if (@stream_select($read, $none, $none, 5) && in_array(STDIN, $read, true) && feof(STDIN)) {
        exit;
    }
    $connection = in_array($listener, $read, true) ? @stream_socket_accept($listener, 0) : false;
    if ($connection !== false && pcntl_fork() === 0) {
        serve($connection, $argv[1]);
        exit;
    }
}
