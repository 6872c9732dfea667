<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\Answer;
use Palisade\Client\Attempt;
use Palisade\Client\AttemptFacts;
use Palisade\Client\BadFacts;
use Palisade\Client\BadInput;
use Palisade\Client\Blocked;
use Palisade\Client\Device;
use Palisade\Client\Flow;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Outcome;
use Palisade\Client\Palisade;
use Palisade\Client\Testing\FakePalisade;
use PHPUnit\Framework\TestCase;

/** Logins and one-time codes. */
final class GuardTest extends TestCase
{
    private static function by(string $account): AttemptFacts
    {
        return new AttemptFacts('203.0.113.5', $account, $account, new Device(clientId: 'd1'));
    }

    public function testWhateverEndsAnAttemptWithoutSuccessIsAFailure(): void
    {
        foreach (['returns', 'throws'] as $end) {
            $palisade = new FakePalisade();
            try {
                $palisade->guard(OnUnavailable::Closed)->login(self::by('bob'), static function () use ($end): void {
                    $end === 'throws' && throw new \DomainException('broken');
                });
            } catch (\DomainException) {
                self::assertSame('throws', $end);
            }
            self::assertSame(['login.check', 'login.failure'], $palisade->ops());
            self::assertSame($palisade->asked()[0]['facts'], $palisade->asked()[1]['facts']);
        }
    }

    public function testAScriptThatExitsInTheMiddleOfAnAttemptIsAFailure(): void
    {
        $others = new Misbehaving();
        $site = new Site(__DIR__, 'site.php', ['PALISADE' => $others->urls['recorder']]);
        self::assertSame('exited', $site->send('GET', '/?exits=1')[2]);
        $asked = (new Palisade($others->urls['recorder'], deadline: 30))->ask('GET', '/asked', []);
        self::assertSame(['/v1/guard/login/check', '/v1/guard/login/failure'], array_column($asked, 'path'));
    }

    public function testSuccessAndAbandoning(): void
    {
        $palisade = new FakePalisade();
        $guard = $palisade->guard(OnUnavailable::Closed);
        $guard->otp(self::by('bob'), static fn (Attempt $attempt) => $attempt->success());
        $guard->login(self::by('bob'), static fn (Attempt $attempt) => $attempt->abandon());
        self::assertSame(['otp.check', 'otp.success', 'login.check'], $palisade->ops());
    }

    public function testGuessingIsStoppedAndTheNextAccountIsFree(): void
    {
        $server = new Server();
        $guard = (new Palisade($server->url, deadline: 30))->guard(OnUnavailable::Closed);
        $verified = 0;
        $refused = null;
        for ($try = 0; $try < 5; $try++) {
            try {
                $guard->login(self::by('bob'), static function () use (&$verified): void {
                    $verified++;
                });
            } catch (Blocked $blocked) {
                $refused = $blocked->answer();
            }
        }
        self::assertSame(2, $verified);
        self::assertSame(['soft_block', 429], [$refused?->decision, $refused?->status]);
        self::assertArrayHasKey('Retry-After', $refused->headers);
        $ann = new AttemptFacts('203.0.113.5', 'ann', 'ann', new Device(clientId: 'd2'));
        self::assertTrue($guard->login($ann, static fn (Attempt $attempt): bool => $attempt->check->allowed()));
        $server->stop();
    }

    public function testACheckAndItsOutcomeInTwoRequests(): void
    {
        $palisade = new FakePalisade();
        $guard = $palisade->guard(OnUnavailable::Closed);
        $facts = self::by('ann');
        self::assertSame($facts->requestId, $guard->check(Flow::Login, $facts)->requestId);
        self::assertSame($facts->requestId, $guard->report(Flow::Login, Outcome::Success, $facts)?->requestId);
        $this->expectException(BadFacts::class);
        $guard->report(Flow::Login, Outcome::Abandoned, $facts);
    }

    public function testSessionsAreIssuedAndRevoked(): void
    {
        $server = new Server();
        $guard = (new Palisade($server->url, deadline: 30))->guard(OnUnavailable::Closed);
        $session = $guard->issueSession('ann');
        $guard->issueSession('ann');
        try {
            $guard->revokeSession('ann', '');
            self::fail('an empty id revokes');
        } catch (BadFacts $bad) {
            self::assertNotNull($bad->field);
        }
        self::assertSame(1, $guard->revokeSession('ann', $session));
        self::assertSame(1, $guard->revokeSessions('ann'));
        $server->stop();
    }

    public function testALostOutcomeIsSaidOnceWithoutNamingAnybody(): void
    {
        $said = [];
        $log = static function (string $message) use (&$said): void {
            $said[] = $message;
        };
        $palisade = new Palisade('http://127.0.0.1:1', deadline: 5, log: $log);
        $attempt = $palisade->guard(OnUnavailable::Open)->login(self::by('bob'), static fn (Attempt $attempt): Attempt => $attempt);
        self::assertNull($attempt->reported());
        self::assertCount(2, $said);
        self::assertStringContainsString('could not be reported', $said[1]);
        self::assertStringNotContainsString('bob', implode($said));
    }

    public function testDelaysHoldABoundedNumberOfProcesses(): void
    {
        // A folder of their own: on this machine nobody else holds a slot there.
        $home = Place::folder();
        $script = 'require $argv[1]; $began = hrtime(true);'
            . '(new Palisade\Client\Palisade("http://127.0.0.1:1", delaysMax: 2))'
            . '->pause(new Palisade\Client\Answer("allow", 200, "r", delayMs: 1000));'
            . 'echo hrtime(true) - $began >= 1e9 ? "held" : "let go", "\n";';
        $command = [PHP_BINARY, '-d', "sys_temp_dir=$home", '-r', $script, '--', __DIR__ . '/bootstrap.php'];
        self::assertSame('held', (new Process($command))->line());
        $slots = glob("$home/palisade-delay-*-0") ?: [];
        self::assertCount(1, $slots);
        $first = fopen($slots[0], 'c');
        $second = fopen(substr($slots[0], 0, -1) . '1', 'c');
        self::assertTrue(flock($first, LOCK_EX));
        self::assertSame('held', (new Process($command))->line(), 'one slot is free');
        self::assertTrue(flock($second, LOCK_EX));
        self::assertSame('let go', (new Process($command))->line());
    }

    public function testTextThatIsNotUtf8IsNamedAndNotSent(): void
    {
        $palisade = new FakePalisade();
        try {
            $palisade->guard(OnUnavailable::Open)->login(self::by("secret\xff"), static fn () => null);
            self::fail('it is taken');
        } catch (BadInput $bad) {
            self::assertSame(['account', 400], [$bad->field, $bad->answer()->status]);
            self::assertStringNotContainsString('secret', $bad . print_r($bad, true));
        }
        self::assertSame([], $palisade->ops());
    }

    public function testNoDumpShowsWhoItIs(): void
    {
        $facts = new AttemptFacts('somebody', 'somebody', 'somebody', new Device(clientId: 'somebody'), 'somebody');
        $dumped = print_r([$facts, new Answer('allow', 200, 'r', receipt: 'somebody')], true);
        self::assertStringNotContainsString('somebody', $dumped);
    }
}
