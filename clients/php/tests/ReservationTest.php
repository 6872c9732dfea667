<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\BadFacts;
use Palisade\Client\Blocked;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use Palisade\Client\RequestFacts;
use Palisade\Client\Reservation;
use Palisade\Client\Settlement;
use Palisade\Client\Testing\FakePalisade;
use PHPUnit\Framework\TestCase;

/** Reserve, extend, settle, release. */
final class ReservationTest extends TestCase
{
    private const COSTS = ['requests' => 1, 'tokens' => 4000];
    private const POLICY = <<<'TOML'
        [policy]
        defaults = false

        [[limit]]
        name = "requests-per-org"
        by = ["org"]
        rate = "60/h"

        [[limit]]
        name = "tokens-per-org"
        by = ["org"]
        rate = "10_000/h"
        unit = "tokens"
        TOML;

    private static function chat(string $org = 'acme'): RequestFacts
    {
        return new RequestFacts(ip: '203.0.113.5', method: 'POST', path: '/v1/chat', org: $org);
    }

    /** Tokens that an organisation has left: what a reservation of all that is left takes. */
    private static function left(Palisade $palisade, string $org = 'acme'): int
    {
        $held = $palisade->reserveOnly(self::chat($org), OnUnavailable::Closed, costs: ['tokens' => 10_000], atMost: true)->held;
        self::assertNotNull($held);
        $palisade->release($held->token);
        return $held->reserved['tokens'];
    }

    public function testWorkIsSettledByWhatItSaid(): void
    {
        $server = new Server(self::POLICY);
        $palisade = new Palisade($server->url, deadline: 30);
        $cases = [
            'less' => [['tokens' => 812], 9188, []],
            'more' => [['tokens' => 6000], 4000, ['tokens' => 2000]],
            'nothing' => [[], 6000, []],
            'unknown' => [['tokens' => null], 6000, []],
        ];
        foreach ($cases as $org => [$said, $left, $over]) {
            $r = $palisade->reserve(self::chat($org), OnUnavailable::Closed, static function (Reservation $r) use ($said): Reservation {
                self::assertSame([self::COSTS, false], [$r->reserved(), $r->expired()]);
                self::assertArrayHasKey('X-RateLimit-Limit', $r->answer->headers);
                $r->used($said);
                return $r;
            }, costs: self::COSTS, hold: '60s');
            $settled = $r->settled();
            self::assertInstanceOf(Settlement::class, $settled);
            self::assertSame([true, false, $over], [$settled->recorded, $settled->late, $settled->over], $org);
            self::assertSame($left, self::left($palisade, $org), $org);
        }
        $server->stop();
    }

    public function testOnlyAReleaseGivesEverythingBack(): void
    {
        $server = new Server(self::POLICY);
        $palisade = new Palisade($server->url, deadline: 30);
        $palisade->reserve(self::chat(), OnUnavailable::Closed, static function (Reservation $r): void {
            $r->used(['tokens' => 7]);
            $r->release();
        }, costs: self::COSTS);
        try {
            $palisade->reserve(self::chat('throws'), OnUnavailable::Closed, static fn () => throw new \DomainException(), costs: self::COSTS);
            self::fail('it is swallowed');
        } catch (\DomainException) {
        }
        self::assertSame([10_000, 6000], [self::left($palisade), self::left($palisade, 'throws')]);
        $server->stop();
    }

    public function testAScriptThatExitsIsSettledByWhatItSaid(): void
    {
        $server = new Server(self::POLICY);
        $site = new Site(__DIR__, 'site.php', ['PALISADE' => $server->url]);
        self::assertSame('spent', $site->send('GET', '/?spends=1')[2]);
        self::assertSame(9188, self::left(new Palisade($server->url, deadline: 30)));
        $server->stop();
    }

    public function testARefusedReservationDoesNoWork(): void
    {
        $server = new Server(self::POLICY);
        $palisade = new Palisade($server->url, deadline: 30);
        $hold = static fn (callable $work): mixed
            => $palisade->reserve(self::chat(), OnUnavailable::Closed, $work, costs: ['tokens' => 9000]);
        try {
            $hold(static fn () => $hold(static fn () => self::fail('it is done')));
            self::fail('it is granted');
        } catch (Blocked $blocked) {
            self::assertSame(429, $blocked->answer()->status);
            self::assertArrayHasKey('Retry-After', $blocked->answer()->headers);
        }
        $server->stop();
    }

    public function testMoreIsReservedWhileWorkGoesOn(): void
    {
        $server = new Server(self::POLICY);
        $palisade = new Palisade($server->url, deadline: 30);
        $palisade->reserve(self::chat(), OnUnavailable::Closed, static function (Reservation $r): void {
            self::assertTrue($r->extend(['tokens' => 1000], hold: '90s')->allowed);
            $tooMuch = $r->extend(['tokens' => 9000]);
            self::assertFalse($tooMuch->allowed);
            self::assertNotNull($tooMuch->error);
            self::assertSame(5000, $r->reserved()['tokens']);
        }, costs: self::COSTS);
        $server->stop();
    }

    public function testTwoReservationsOfOneRequestAreTwo(): void
    {
        $palisade = new FakePalisade();
        $facts = self::chat();
        [$one, $other] = [$palisade->reserveOnly($facts, OnUnavailable::Closed), $palisade->reserveOnly($facts, OnUnavailable::Closed)];
        self::assertNotSame($one->held?->token, $other->held?->token);
        $asked = array_column($palisade->asked(), 'facts');
        self::assertNotSame($asked[0]['request_id'], $asked[1]['request_id']);
        self::assertSame([$facts->requestId, $facts->requestId], array_column($asked, 'correlation_id'));
    }

    public function testWrongAmountsAreNamed(): void
    {
        (new FakePalisade())->reserve(self::chat(), OnUnavailable::Open, static function (Reservation $r): void {
            foreach ([['tokens' => -1], ['tokens' => 2 ** 47 + 1], ['euros' => 1]] as $costs) {
                try {
                    $r->used($costs);
                    self::fail('it is taken');
                } catch (BadFacts $bad) {
                    self::assertSame('costs', $bad->field);
                }
            }
            $r->used(['tokens' => 2 ** 47]);
        }, costs: self::COSTS);
    }

    public function testASettleThatIsLostIsLoggedAndFailsNothing(): void
    {
        $said = [];
        $log = static function (string $message) use (&$said): void {
            $said[] = $message;
        };
        $server = new Server(self::POLICY);
        $palisade = new Palisade($server->url, deadline: 5, log: $log);
        $r = $palisade->reserve(self::chat(), OnUnavailable::Closed, static function (Reservation $r) use ($server): Reservation {
            $server->stop();
            return $r;
        }, costs: self::COSTS);
        self::assertNull($r->settled());
        self::assertStringContainsString('could not be settled', implode("\n", $said));
    }

    public function testAnOutageIsDecidedByTheChoice(): void
    {
        $palisade = new FakePalisade();
        $palisade->goAway();
        $open = $palisade->reserve(self::chat(), OnUnavailable::Open, static fn (Reservation $r): array => [$r->extend(hold: '60s')->allowed, $r->expired(), $r->reserved()], costs: self::COSTS);
        self::assertSame([true, false, self::COSTS], $open);
        $this->expectException(Blocked::class);
        $palisade->reserve(self::chat(), OnUnavailable::Closed, static fn () => self::fail('it is done'));
    }

    public function testWorkWhoseReservationIsLostLearnsIt(): void
    {
        $palisade = new FakePalisade();
        $palisade->reserve(self::chat(), OnUnavailable::Closed, static function (Reservation $r) use ($palisade): void {
            $palisade->expire();
            self::assertTrue($r->extend()->expired);
            self::assertTrue($r->expired());
        });
        self::assertSame(['reserve', 'extend', 'settle'], $palisade->ops());
    }

    public function testNoDumpShowsAReservation(): void
    {
        $palisade = new FakePalisade();
        $held = $palisade->reserveOnly(self::chat(), OnUnavailable::Closed);
        self::assertStringNotContainsString('reservation-1', print_r($held, true));
    }
}
