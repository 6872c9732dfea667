<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\BadFacts;
use Palisade\Client\Misconfigured;
use Palisade\Client\TrustedProxies;
use PHPUnit\Framework\TestCase;

/** I-XFF: the client's address. */
final class TrustedProxiesTest extends TestCase
{
    public function testTheFirstFromTheRightThatIsNoProxy(): void
    {
        $proxies = new TrustedProxies(['10.0.0.0/8', '2001:db8:ffff::/48', '192.0.2.1', '172.16.0.0/12']);
        $cases = [
            ['203.0.113.5', [], '203.0.113.5'],
            ['203.0.113.5', ['198.51.100.1'], '203.0.113.5'],
            ['203.0.113.5', ['nonsense'], '203.0.113.5'],
            ['10.0.0.1', [], '10.0.0.1'],
            ['10.0.0.1', ['198.51.100.1'], '198.51.100.1'],
            ['192.0.2.1', ['198.51.100.1'], '198.51.100.1'],
            ['192.0.2.2', ['198.51.100.1'], '192.0.2.2'],
            ['172.31.255.255', ['198.51.100.1'], '198.51.100.1'],
            ['172.32.0.0', ['198.51.100.1'], '172.32.0.0'],
            ['10.0.0.1', ['1.1.1.1, 198.51.100.1'], '198.51.100.1'],
            ['10.0.0.1', ['nonsense, 198.51.100.1, 10.0.0.2'], '198.51.100.1'],
            ['10.0.0.1', ['1.1.1.1', '198.51.100.1'], '198.51.100.1'],
            ['10.0.0.1', ['10.0.0.3, 10.0.0.2'], '10.0.0.3'],
            ['::ffff:10.0.0.1', ['198.51.100.1:4711'], '198.51.100.1'],
            ['10.0.0.1', ['[2001:db8::1]:443'], '2001:db8::1'],
            ['2001:db8:ffff::1', ['[2001:db8::1]'], '2001:db8::1'],
            ['2001:db8:fffe::1', ['[2001:db8::1]'], '2001:db8:fffe::1'],
            ['10.0.0.1', ['::ffff:198.51.100.1'], '198.51.100.1'],
        ];
        foreach ($cases as [$peer, $chain, $client]) {
            self::assertSame($client, $proxies->client($peer, $chain), "$peer " . implode('|', $chain));
        }
        self::assertTrue((new TrustedProxies(['0.0.0.0/0']))->trusts('203.0.113.5'));
    }

    public function testAChainThatCannotBeReadIsRefused(): void
    {
        $proxies = new TrustedProxies(['10.0.0.0/8']);
        foreach (['', 'unknown', '198.51.100.1, x', '198.51.100.1:99999', 'fe80::1%eth0', '[1.1.1.1]', "1.1.1.1:80\n", str_repeat('1,', 251)] as $chain) {
            try {
                $proxies->client('10.0.0.1', [$chain]);
                self::assertSame("1.1.1.1:80\n", $chain, "$chain is taken");
            } catch (BadFacts $bad) {
                self::assertSame('x-forwarded-for', $bad->field);
            }
        }
    }

    public function testAUnixSocketIsTrustedOnlyIfItIsNamed(): void
    {
        self::assertSame('198.51.100.1', (new TrustedProxies(['unix']))->client(null, ['198.51.100.1']));
        $this->expectException(Misconfigured::class);
        (new TrustedProxies([]))->client('', ['198.51.100.1']);
    }

    public function testAWrongNetworkIsRefused(): void
    {
        foreach (['10.0.0.0/99', '10.0.0', '', 'localhost', '10.0.0.0/', '10.0.0.0/-1', '10.0.0.0/8/8'] as $wrong) {
            try {
                new TrustedProxies([$wrong]);
                self::fail("`$wrong` is taken");
            } catch (Misconfigured $error) {
                self::assertStringContainsString('trustedProxies', $error->getMessage());
            }
        }
    }
}
