<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

/** Folders and free ports. */
final class Place
{
    public static function conformance(): string
    {
        return getenv('PALISADE_CONFORMANCE') ?: dirname(__DIR__, 2) . '/conformance';
    }

    public static function docs(): string
    {
        return getenv('PALISADE_DOCS') ?: dirname(__DIR__, 3) . '/docs';
    }

    /** A new folder, removed with the process. */
    public static function folder(): string
    {
        $folder = sys_get_temp_dir() . '/palisade-php-' . bin2hex(random_bytes(8));
        mkdir($folder, 0700);
        register_shutdown_function(static fn () => exec('rm -rf ' . escapeshellarg($folder)));
        return $folder;
    }

    public static function freePort(): int
    {
        $socket = stream_socket_server('tcp://127.0.0.1:0') ?: throw new \RuntimeException('no port is free');
        $port = (int) substr((string) strrchr((string) stream_socket_get_name($socket, false), ':'), 1);
        fclose($socket);
        return $port;
    }
}
