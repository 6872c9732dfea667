<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\Misconfigured;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use Palisade\Client\RequestFacts;
use PHPUnit\Framework\TestCase;

/** Connections: how answers end, what is kept, and what is never used again. */
final class TransportTest extends TestCase
{
    private ?Process $stub = null;

    protected function tearDown(): void
    {
        $this->stub = null;
    }

    private function stub(string $how): string
    {
        $this->stub = new Process([PHP_BINARY, __DIR__ . '/stub.php', $how]);
        return 'http://' . $this->stub->line();
    }

    /** @return list<string> who decided each of some questions, and over which connection */
    private function asked(string $url, int $times, float $deadline = 30): array
    {
        $palisade = new Palisade($url, deadline: $deadline, log: static fn () => null);
        $decided = [];
        for ($time = 0; $time < $times; $time++) {
            // New ones each time: the id is theirs.
            $facts = new RequestFacts(ip: '203.0.113.7', method: 'GET', path: '/');
            $answer = $palisade->check($facts, OnUnavailable::Closed);
            $decided[] = trim("$answer->decidedBy $answer->rule");
        }
        $palisade->close();
        return $decided;
    }

    public function testAnswersInPartsAndAfterInterimOnesAreRead(): void
    {
        foreach (['plain', 'chunked', 'interim'] as $how) {
            $decided = $this->asked($this->stub($how), 3);
            self::assertStringStartsWith('palisade ', $decided[0], $how);
            self::assertCount(1, array_unique($decided), "$how: one connection");
        }
    }

    public function testASettleThatIsNotRecordedYetIsAnAnswer(): void
    {
        $palisade = new Palisade($this->stub('accepted'), deadline: 30);
        self::assertFalse($palisade->settle('token', [])->recorded);
    }

    public function testAnAnswerWhoseEndIsNotCertainIsNone(): void
    {
        foreach (['two_lengths', 'both_lengths', 'no_length', 'folded', 'endless_head'] as $how) {
            self::assertSame(['client'], $this->asked($this->stub($how), 1, 5), $how);
        }
    }

    public function testAnAnswerThatNobodyAskedForIsNeverAnothersAnswer(): void
    {
        $decided = $this->asked($this->stub('twice'), 3);
        self::assertSame([], preg_grep('/^client/', $decided));
    }

    public function testOneConnectionServesTheRequestsOfAProcess(): void
    {
        $site = new Site(__DIR__, 'site.php', ['PALISADE' => $this->stub('plain')]);
        $said = array_map(static fn (): string => $site->send('GET', '/')[2], range(1, 4));
        self::assertStringStartsWith('palisade ', $said[0]);
        self::assertCount(1, array_unique($said));
    }

    /** Without the end of the connection the next request would read the answer of this one. */
    public function testARequestThatEndsInTheMiddleLeavesNothingToTheNext(): void
    {
        $site = new Site(__DIR__, 'site.php', ['PALISADE' => $this->stub('late')]);
        $first = $site->send('GET', '/')[2];
        self::assertSame('died', $site->send('GET', '/?dies=1&user=late')[2]);
        $next = $site->send('GET', '/')[2];
        self::assertStringStartsWith('palisade ', $next);
        self::assertNotSame($first, $next);
        self::assertSame($next, $site->send('GET', '/')[2], 'and that one is kept');
    }

    public function testAForkDoesNotShareTheConnectionOfItsParent(): void
    {
        $palisade = new Palisade($this->stub('plain'), deadline: 30);
        $facts = new RequestFacts(ip: '203.0.113.7', method: 'GET', path: '/');
        $before = $palisade->check($facts, OnUnavailable::Closed)->rule;
        $child = pcntl_fork();
        if ($child === 0) {
            $own = $palisade->check($facts, OnUnavailable::Closed)->rule;
            // No destructor of the tests' runner.
            pcntl_exec('/bin/sh', ['-c', $own !== null && $own !== $before ? 'exit 7' : 'exit 1']);
        }
        pcntl_waitpid($child, $status);
        self::assertSame(7, pcntl_wexitstatus($status));
        self::assertSame($before, $palisade->check($facts, OnUnavailable::Closed)->rule);
    }

    public function testAURLOrATokenThatCannotBeUsedIsRefusedAtTheStart(): void
    {
        $wrong = [
            ['', null], ['127.0.0.1:8080', null], ['ftp://host', null], ['http://host/path', null], ['http://a:b@host', null],
            ['http://host:99999', null], ['http://host', "secret\n"], ['http://host', 'secret token'], ['http://host', ''],
        ];
        foreach ($wrong as [$url, $token]) {
            try {
                new Palisade($url, token: $token);
                self::fail("$url is taken");
            } catch (Misconfigured $error) {
                self::assertStringNotContainsString('secret', (string) $error);
            }
        }
    }

    public function testAHandshakeThatHangsIsWithinTheDeadline(): void
    {
        $others = new Misbehaving();
        $began = microtime(true);
        $decided = $this->asked(str_replace('http:', 'https:', $others->urls['silent']), 1, 0.3);
        self::assertSame(['client'], $decided);
        self::assertGreaterThanOrEqual(0.3, microtime(true) - $began);
        self::assertLessThan(8, microtime(true) - $began);
    }

    public function testTlsACallerWithACertificateIsAnsweredAndNobodyElseIs(): void
    {
        $home = Place::folder();
        foreach (['ca', 'stranger'] as $authority) {
            $this->openssl($home, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=$authority -keyout $authority.key -out $authority.pem");
            file_put_contents("$home/names", 'subjectAltName=IP:127.0.0.1');
            $name = $authority === 'ca' ? 'cert' : 'other';
            $this->openssl($home, "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=caller -keyout $name.key -out $name.csr");
            $this->openssl($home, "x509 -req -in $name.csr -CA $authority.pem -CAkey $authority.key -CAcreateserial -days 1 -extfile names -out $name.pem");
        }
        $server = new Server("[tls]\ncert = \"cert.pem\"\nkey = \"cert.key\"\nclient_ca = \"ca.pem\"\n", home: $home);
        self::assertStringStartsWith('https://', $server->url);
        $believes = ['cafile' => "$home/ca.pem"];
        $cases = [
            'palisade' => [...$believes, 'local_cert' => "$home/cert.pem", 'local_pk' => "$home/cert.key"],
            'client, no certificate' => $believes,
            'client, a stranger' => [...$believes, 'local_cert' => "$home/other.pem", 'local_pk' => "$home/other.key"],
            'client, not believed' => [],
        ];
        foreach ($cases as $name => $tls) {
            $palisade = new Palisade($server->url, deadline: 30, tls: $tls, log: static fn () => null);
            for ($time = 0; $time < 2; $time++) {
                $facts = new RequestFacts(ip: '203.0.113.7', method: 'GET', path: '/');
                self::assertSame(explode(',', $name)[0], $palisade->check($facts, OnUnavailable::Closed)->decidedBy, $name);
            }
        }
        $server->stop();
    }

    private function openssl(string $home, string $arguments): void
    {
        exec('cd ' . escapeshellarg($home) . " && openssl $arguments 2>&1", $lines, $code);
        self::assertSame(0, $code, implode("\n", $lines));
    }
}
