<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

/** A program that runs until its object is gone. */
final class Process
{
    /** @var resource */
    private $process;
    /** @var array<int, resource> */
    private array $pipes = [];

    /**
     * @param list<string> $command
     * @param array<string, string> $environment
     */
    public function __construct(array $command, ?string $folder = null, array $environment = [])
    {
        $pipes = [0 => ['pipe', 'r'], 1 => ['pipe', 'w'], 2 => ['file', '/dev/null', 'w']];
        $process = proc_open($command, $pipes, $this->pipes, $folder, [...getenv(), ...$environment]);
        $this->process = $process ?: throw new \RuntimeException("$command[0] cannot be started");
    }

    /** The next line that it prints; its end is an error. */
    public function line(): string
    {
        $line = fgets($this->pipes[1]);
        return $line === false ? throw new \RuntimeException('the program ended at its start') : rtrim($line, "\n");
    }

    public function __destruct()
    {
        fclose($this->pipes[0]);
        proc_terminate($this->process, 9);
        proc_close($this->process);
    }
}
