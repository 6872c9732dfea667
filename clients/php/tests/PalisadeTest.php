<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\BadFacts;
use Palisade\Client\BadInput;
use Palisade\Client\Blocked;
use Palisade\Client\JobFacts;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use Palisade\Client\RequestFacts;
use Palisade\Client\Testing\FakePalisade;
use Palisade\Client\Unavailable;
use PHPUnit\Framework\TestCase;

/** Decisions, receipts, jobs, and the test double. */
final class PalisadeTest extends TestCase
{
    public function testBadInputInABatchIsNamedWithItsPlace(): void
    {
        $server = new Server();
        $good = new RequestFacts(ip: '203.0.113.7', method: 'GET', path: '/');
        try {
            (new Palisade($server->url, deadline: 30))->batch([$good, $good->with(['user' => str_repeat('u', 600)])], OnUnavailable::Open);
            self::fail('it is taken');
        } catch (BadInput $bad) {
            self::assertSame(['checks[1].user', 400], [$bad->field, $bad->answer()->status]);
        }
        $server->stop();
    }

    public function testAReceiptGivesBackOnce(): void
    {
        $server = new Server();
        $palisade = new Palisade($server->url, deadline: 30);
        $facts = new RequestFacts(ip: '203.0.113.7', method: 'POST', path: '/auth/token', receipt: true);
        $receipt = (string) $palisade->check($facts, OnUnavailable::Closed)->receipt;
        self::assertSame([true, false], [$palisade->refund($receipt), $palisade->refund($receipt)]);
        try {
            $palisade->refund("A$receipt");
            self::fail('it is taken');
        } catch (BadFacts $bad) {
            self::assertSame('receipt', $bad->field);
        }
        $server->stop();
        $this->expectException(Unavailable::class);
        (new Palisade($server->url, log: static fn () => null))->refund($receipt);
    }

    public function testTJobsAJobThatWasNotQueuedIsGivenBack(): void
    {
        $server = new Server("[[class]]\nname = \"jobs\"\n[[limit]]\nname = \"jobs-per-org\"\nby = [\"org\"]\nclass = \"jobs\"\nrate = \"10/h\"\n");
        $palisade = new Palisade($server->url, deadline: 30);
        $queue = static function (bool $fails) use ($palisade): string {
            try {
                return $palisade->enqueue(new JobFacts('acme', 't1', class: 'jobs'), OnUnavailable::Closed, static fn (): string
                    => $fails ? throw new \DomainException('full') : 'queued');
            } catch (\DomainException) {
                return 'failed';
            } catch (Blocked) {
                return 'blocked';
            }
        };
        $played = array_map($queue, [...array_merge(...array_fill(0, 9, [false, true])), false, false]);
        self::assertSame([...array_merge(...array_fill(0, 9, ['queued', 'failed'])), 'queued', 'blocked'], $played);
        $server->stop();
    }

    public function testAnOutageIsLoggedOnceAndSoIsItsEnd(): void
    {
        $said = [];
        $palisade = new Palisade('http://127.0.0.1:1', deadline: 5, log: static function (string $message) use (&$said): void {
            $said[] = $message;
        });
        $facts = new RequestFacts(ip: '203.0.113.7', method: 'GET', path: '/');
        $palisade->check($facts, OnUnavailable::Open);
        $palisade->check($facts, OnUnavailable::Open);
        self::assertCount(1, $said);
        self::assertStringContainsString('`onUnavailable` decides', $said[0]);
    }

    public function testTheDoubleRefusesByFactsAndLetsTheFirstPass(): void
    {
        $palisade = new FakePalisade();
        $palisade->refuse('job.enqueue', ['org' => 'acme', 'cost' => 2], after: 2, decision: 'hard_block');
        $job = new JobFacts('acme', cost: 2);
        $decisions = array_map(static fn (): string => $palisade->check($job, OnUnavailable::Open)->decision, range(1, 3));
        self::assertSame(['allow', 'allow', 'hard_block'], $decisions);
        $batch = $palisade->batch([$job, new JobFacts('else')], OnUnavailable::Open);
        self::assertSame([false, true], [$batch[0]->allowed(), $batch[1]->allowed()]);
        self::assertTrue($palisade->refund((string) $batch[1]->receipt));
        $palisade->goAway();
        self::assertSame(503, $palisade->check($job, OnUnavailable::Closed)->status);
        $palisade->comeBack();
        self::assertSame('palisade', $palisade->check($job, OnUnavailable::Closed)->decidedBy);
        $this->expectException(\InvalidArgumentException::class);
        $palisade->refuse('login');
    }
}
