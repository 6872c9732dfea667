<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

/** A real `palisade serve`. */
final class Server
{
    public readonly string $url;
    public readonly string $home;
    private ?Process $process;

    /** @param array<string, string> $environment */
    public function __construct(string $policy = '', array $environment = [], ?string $home = null)
    {
        $this->home = $home ?? Place::folder();
        file_put_contents("{$this->home}/palisade.toml", $policy);
        $this->process = new Process([
            getenv('PALISADE_BIN') ?: 'palisade', 'serve', '--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0',
            '--store', 'memory:', '--config', 'palisade.toml',
        ], $this->home, ['PALISADE_LOG__LEVEL' => 'error', ...$environment]);
        $url = '';
        do {
            $line = $this->process->line();
            $url = preg_match('~decision API +(https?://\S+)~', $line, $found) === 1 ? $found[1] : $url;
        } while ($line !== 'ready');
        $this->url = $url;
    }

    public function stop(): void
    {
        $this->process = null;
    }
}
