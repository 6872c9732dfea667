<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\Deadline;
use Palisade\Client\Resolver;
use Palisade\Client\Unavailable;
use PHPUnit\Framework\TestCase;

/** Look-ups, with a name server of the test's own. */
final class ResolverTest extends TestCase
{
    /** @var resource */
    private $socket;
    private int $port;
    private string $home;

    protected function setUp(): void
    {
        $this->socket = stream_socket_server('udp://127.0.0.1:0', $code, $message, STREAM_SERVER_BIND);
        $this->port = (int) substr((string) strrchr((string) stream_socket_get_name($this->socket, false), ':'), 1);
        $this->home = Place::folder();
        file_put_contents("{$this->home}/hosts", "# nobody\n127.0.0.7 Known known.test # 1.1.1.1 other\n::7 known\n");
        file_put_contents("{$this->home}/resolv.conf", "search corp.test\nnameserver 127.0.0.1\noptions ndots:1\n");
    }

    /** @return list<string> */
    private function addresses(string $host, float $seconds = 30): array
    {
        $resolver = new Resolver("{$this->home}/hosts", "{$this->home}/resolv.conf", $this->port);
        return $resolver->addresses($host, Deadline::in($seconds));
    }

    /**
     * Answers questions in a process of its own.
     *
     * @param callable(string $name, int $type, string $question): string $answer
     */
    private function serve(callable $answer): void
    {
        $child = pcntl_fork();
        if ($child === 0) {
            pcntl_alarm(60);
            while (true) {
                $asked = stream_socket_recvfrom($this->socket, 512, 0, $from);
                for ($at = 12, $labels = []; ($length = ord($asked[$at])) > 0; $at += 1 + $length) {
                    $labels[] = substr($asked, $at + 1, $length);
                }
                $said = $answer(implode('.', $labels), unpack('n', $asked, $at + 1)[1], $asked);
                if ($said !== '') {
                    stream_socket_sendto($this->socket, $said, 0, $from);
                }
            }
        }
        register_shutdown_function(static fn () => posix_kill($child, 9));
    }

    /** @param list<string> $records */
    private static function answer(string $question, array $records, int $code = 0): string
    {
        $flags = pack('n', 0x8180 | $code);
        $counts = pack('n4', 1, count($records), 0, 0);
        return substr($question, 0, 2) . $flags . $counts . substr($question, 12) . implode('', $records);
    }

    private static function record(int $type, string $data): string
    {
        return "\xc0\x0c" . pack('nnNn', $type, 1, 60, strlen($data)) . $data;
    }

    public function testAddressesAndKnownHostsAreNotAsked(): void
    {
        self::assertSame(['127.0.0.1'], $this->addresses('127.0.0.1'));
        self::assertSame(['::1'], $this->addresses('::1'));
        self::assertSame(['127.0.0.7', '::7'], $this->addresses('KNOWN'));
        self::assertSame(['127.0.0.7'], $this->addresses('known.test.'));
    }

    public function testANameIsLookedUpAlsoThroughAnAliasAndInTheSearchList(): void
    {
        $this->serve(static fn (string $name, int $type, string $question): string => match (true) {
            $name === 'palisade.corp.test' && $type === 1
                => self::answer($question, [self::record(5, "\x01x\x00"), self::record(1, "\x7f\0\0\1"), self::record(1, "\x7f\0\0\2")]),
            $name === 'palisade.corp.test' => self::answer($question, [self::record(28, str_repeat("\0", 15) . "\1")]),
            default => self::answer($question, [], 3),
        });
        self::assertSame(['127.0.0.1', '127.0.0.2', '::1'], self::sorted($this->addresses('palisade')));
        self::assertSame(['127.0.0.1', '127.0.0.2', '::1'], self::sorted($this->addresses('palisade.corp.test')));
        $this->expectExceptionMessage('its name is not known');
        $this->addresses('nobody.test');
    }

    /** @param list<string> $addresses */
    private static function sorted(array $addresses): array
    {
        sort($addresses);
        return $addresses;
    }

    public function testAnAnswerToAnotherQuestionIsNotTaken(): void
    {
        $this->serve(static function (string $name, int $type, string $question): string {
            $forged = self::answer($question, [self::record(1, "\6\6\6\6")]);
            return match ($name) {
                // Another id, another name, a question instead of an answer, and pieces.
                'id.test' => chr(ord($forged[0]) ^ 1) . substr($forged, 1),
                'name.test' => str_replace('name', 'evil', $forged),
                'echo.test' => $question,
                'short.test' => substr($forged, 0, 20),
                default => substr($forged, 0, -2),
            };
        });
        foreach (['id.test', 'name.test', 'echo.test', 'short.test', 'torn.test'] as $name) {
            try {
                self::fail("$name: " . implode(' ', $this->addresses($name, 0.3)));
            } catch (Unavailable $error) {
                self::assertNotSame('', $error->getMessage());
            }
        }
    }

    public function testS12ANameServerThatHangsIsWithinTheDeadline(): void
    {
        $began = microtime(true);
        try {
            $this->addresses('palisade.test', 0.3);
            self::fail('found');
        } catch (Unavailable $error) {
            self::assertSame('no answer before the deadline', $error->getMessage());
        }
        $took = microtime(true) - $began;
        self::assertTrue($took >= 0.3 && $took < 8, (string) $took);
    }
}
