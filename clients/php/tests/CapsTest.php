<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\Caps;
use Palisade\Client\Misconfigured;
use PHPUnit\Framework\TestCase;

/** Local caps: never more than they say, in any window, over all processes. */
final class CapsTest extends TestCase
{
    private float $now = 1_000.0;

    private function caps(int $perKey, int $total, float $window, ?string $file = null): Caps
    {
        return new Caps($perKey, $total, $window, $file, fn (): float => $this->now);
    }

    public function testNoWindowHoldsMoreThanTheCaps(): void
    {
        for ($seed = 0; $seed < 20; $seed++) {
            mt_srand($seed);
            [$perKey, $total, $window] = [mt_rand(1, 4), mt_rand(1, 9), [1.0, 7.5][mt_rand(0, 1)]];
            $caps = $this->caps($perKey, $total, $window);
            $admitted = [];
            for ($step = 0; $step < 400; $step++) {
                $this->now += [0.0, 0.0, 0.125, 0.5][mt_rand(0, 3)];
                $who = 'ip 203.0.113.' . mt_rand(1, 5);
                if ($caps->take([$who]) <= 0) {
                    $admitted[] = [$this->now, $who];
                }
                $inside = array_column(array_filter($admitted, fn (array $one): bool => $one[0] > $this->now - $window), 1);
                self::assertLessThanOrEqual($total, count($inside));
                self::assertLessThanOrEqual($perKey, max([0, ...array_values(array_count_values($inside))]));
            }
            self::assertGreaterThan($total, count($admitted), 'the caps free up again');
        }
    }

    public function testARefusalSaysHowLongAndIsNotCounted(): void
    {
        $caps = $this->caps(1, 10, 10);
        self::assertSame(0.0, $caps->take(['account a', 'ip 203.0.113.1']));
        $this->now += 4;
        self::assertSame(6.0, $caps->take(['account a', 'ip 203.0.113.2']));
        self::assertSame(0.0, $caps->take(['account b', 'ip 203.0.113.2']), 'the refusal took nothing');
        $this->now += 6;
        self::assertSame(0.0, $caps->take(['account a', 'ip 203.0.113.1']));
    }

    public function testAnIpv6ClientIsIts64(): void
    {
        $caps = $this->caps(1, 10, 10);
        self::assertSame(0.0, $caps->take(['ip 2001:db8::1']));
        self::assertSame(10.0, $caps->take(['ip 2001:db8::ffff:2']));
        self::assertSame(0.0, $caps->take(['ip 2001:db8:0:1::1']));
        self::assertSame(0.0, $caps->take(['ip 203.0.113.9']));
        self::assertSame(10.0, $caps->take(['ip ::ffff:203.0.113.9']));
    }

    public function testAFileIsSharedByProcessesAndHoldsNobodysName(): void
    {
        $file = Place::folder() . '/caps';
        $children = [];
        for ($process = 0; $process < 8; $process++) {
            $children[] = $child = pcntl_fork();
            if ($child === 0) {
                $caps = new Caps(perKey: 100, total: 20, window: 3600, file: $file);
                for ($passed = 0, $try = 0; $try < 10; $try++) {
                    $passed += $caps->take(['account somebody']) <= 0 ? 1 : 0;
                }
                pcntl_exec('/bin/sh', ['-c', "exit $passed"]);
            }
        }
        $passed = 0;
        foreach ($children as $child) {
            pcntl_waitpid($child, $status);
            $passed += pcntl_wexitstatus($status);
        }
        // A process that does not get the lock in time is refused, so it may be fewer.
        self::assertLessThanOrEqual(20, $passed);
        self::assertGreaterThan(0, $passed);
        self::assertStringNotContainsString('somebody', (string) file_get_contents($file));
        self::assertSame(0600, fileperms($file) & 0777);
    }

    public function testAFloodOfKeysLeavesASmallFile(): void
    {
        $file = Place::folder() . '/caps';
        $caps = $this->caps(1, 5, 10, $file);
        for ($key = 0; $key < 500; $key++) {
            $caps->take(["account $key"]);
        }
        self::assertLessThan(1000, filesize($file));
    }

    public function testAFileThatIsBrokenOrCannotBeOpened(): void
    {
        $file = Place::folder() . '/caps';
        file_put_contents($file, '{"broken');
        self::assertSame(0.0, $this->caps(1, 5, 10, $file)->take(['account a']));
        $gone = $this->caps(1, 5, 10, $file);
        unlink($file);
        rmdir(dirname($file));
        self::assertGreaterThan(0, $gone->take(['account b']), 'nobody is let through');
        $this->expectException(Misconfigured::class);
        $this->caps(1, 5, 10, '/nowhere/caps');
    }

    public function testImpossibleCapsAreRefused(): void
    {
        foreach ([[0, 1, 1.0], [1, 0, 1.0], [1, 1, 0.0], [1, 1, NAN], [1, 1, INF]] as [$perKey, $total, $window]) {
            try {
                $this->caps($perKey, $total, $window);
                self::fail('taken');
            } catch (Misconfigured $error) {
                self::assertStringContainsString('positive', $error->getMessage());
            }
        }
    }
}
