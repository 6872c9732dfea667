<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Palisade\Client\Answer;
use Palisade\Client\Attempt;
use Palisade\Client\AttemptFacts;
use Palisade\Client\BadFacts;
use Palisade\Client\BadInput;
use Palisade\Client\Blocked;
use Palisade\Client\Caps;
use Palisade\Client\CheckFacts;
use Palisade\Client\Device;
use Palisade\Client\HitFacts;
use Palisade\Client\JobFacts;
use Palisade\Client\Misconfigured;
use Palisade\Client\OAuthClient;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use Palisade\Client\PalisadeException;
use Palisade\Client\RequestFacts;
use Palisade\Client\Unavailable;
use PHPUnit\Framework\TestCase;

/** The behaviours that every client has. */
final class ConformanceTest extends TestCase
{
    private const TOKEN = 'a-token-that-callers-show-0123456789';

    /** @var list<object> */
    private static array $running = [];
    /** @var array<string, string> */
    private static array $urls = [];
    /** @var array<string, mixed> */
    private array $bound = [];

    public static function setUpBeforeClass(): void
    {
        $others = new Misbehaving();
        $real = new Server(self::list()['policy']);
        $guarded = new Server("[server]\ncaller_token = \"env:CALLER\"\n", ['CALLER' => self::TOKEN]);
        self::$running = [$others, $real, $guarded];
        self::$urls = [...$others->urls, 'palisade' => $real->url, 'palisade_with_token' => $guarded->url];
    }

    public static function tearDownAfterClass(): void
    {
        self::$running = [];
    }

    /** @return array{policy: string, cases: list<array<string, mixed>>} */
    private static function list(): array
    {
        $text = (string) file_get_contents(Place::conformance() . '/cases.json');
        return json_decode($text, true, flags: JSON_THROW_ON_ERROR);
    }

    /** @return iterable<string, array{array<string, mixed>}> */
    public function cases(): iterable
    {
        foreach (self::list()['cases'] as $case) {
            yield $case['name'] => [$case];
        }
    }

    /**
     * @dataProvider cases
     * @param array<string, mixed> $case
     */
    public function testConformance(array $case): void
    {
        $url = self::$urls[$case['server']];
        $deadline = ($case['deadline_ms'] ?? 30_000) / 1000;
        $palisade = new Palisade($url, token: $case['token'] ?? null, deadline: $deadline, log: static fn () => null);
        $bounds = $case['caps'] ?? ['per_key' => 1, 'total' => 1, 'window_ms' => 1];
        $file = Place::folder() . '/caps';
        $choices = [
            'closed' => OnUnavailable::Closed,
            'open' => OnUnavailable::Open,
            'caps' => new Caps($bounds['per_key'], $bounds['total'], $bounds['window_ms'] / 1000, $file),
        ];
        $receipt = null;
        foreach ($case['steps'] as $number => $step) {
            for ($times = 0; $times < ($step['repeat'] ?? 1); $times++) {
                $began = hrtime(true);
                $result = self::result($palisade, $url, $step, $receipt, $choices[$step['on_unavailable'] ?? 'closed']);
                $took = (hrtime(true) - $began) / 1e6;
                $this->partOf($step['expect'], $result, "step $number");
                self::assertGreaterThanOrEqual($step['at_least_ms'] ?? 0, $took);
                self::assertLessThanOrEqual($step['at_most_ms'] ?? 60_000, $took);
                if (isset($step['connections_at_most'])) {
                    $used = array_unique(array_column($result, 'connection'));
                    self::assertLessThanOrEqual($step['connections_at_most'], count($used));
                }
                $receipt = $result['receipt'] ?? null;
                foreach ($case['hidden'] ?? [] as $hidden) {
                    self::assertStringNotContainsString($hidden, json_encode($result, JSON_THROW_ON_ERROR), "step $number");
                }
            }
        }
        $palisade->close();
    }

    /** @param array<string, mixed> $step */
    private static function result(
        Palisade $palisade,
        string $url,
        array $step,
        ?string $receipt,
        OnUnavailable|Caps $choice,
    ): array {
        if ($step['do'] === 'asked') {
            return (new Palisade($url, deadline: 30))->ask('GET', '/asked', []);
        }
        $given = $step['do'] === 'refund' ? $receipt : self::written($step['facts']);
        try {
            return match ($step['do']) {
                'check', 'peek' => self::ofAnswer($palisade->{$step['do']}(self::checkFacts($given), $choice)),
                'batch' => ['is' => 'answer', 'answers' => array_map(
                    self::ofAnswer(...),
                    $palisade->batch(array_map(self::checkFacts(...), $given), $choice),
                )],
                'api_hit' => self::ofAnswer($palisade->apiHit(new HitFacts($given['ip']), $choice)),
                'refund' => ['is' => 'answer', 'refunded' => $palisade->refund($given)],
                'issue_session' => [
                    'is' => 'answer',
                    'session' => $palisade->guard($choice)->issueSession($given['account']) !== '',
                ],
                default => self::attempted($palisade, $step, $given, $choice),
            };
        } catch (PalisadeException $error) {
            return self::ofError($error);
        }
    }

    /**
     * @param array<string, mixed> $step
     * @param array<string, mixed> $given
     * @return array<string, mixed>
     */
    private static function attempted(Palisade $palisade, array $step, array $given, OnUnavailable|Caps $choice): array
    {
        $end = $step['end'] ?? 'failure';
        $attempt = $palisade->guard($choice)->{$step['do']}(
            self::attemptFacts($given),
            static function (Attempt $attempt) use ($end): Attempt {
                $attempt->{$end}();
                return $attempt;
            },
        );
        $reported = $end === 'abandon' ? null : $attempt->reported() !== null;
        return [...self::ofAnswer($attempt->check), 'reported' => $reported];
    }

    private static function written(mixed $value): mixed
    {
        if (!is_array($value)) {
            return $value;
        }
        return isset($value['$repeat']) ? str_repeat(...$value['$repeat']) : array_map(self::written(...), $value);
    }

    /**
     * `user_agent` is `userAgent` here.
     *
     * @param array<string, mixed> $facts
     * @return array<string, mixed>
     */
    private static function named(array $facts): array
    {
        $camel = static fn (string $name): string => lcfirst(str_replace('_', '', ucwords($name, '_')));
        return array_combine(array_map($camel, array_keys($facts)), $facts);
    }

    /** @param array<string, mixed> $facts */
    private static function checkFacts(array $facts): CheckFacts
    {
        $isJob = ($facts['op'] ?? null) === 'job.enqueue';
        unset($facts['op']);
        if (isset($facts['client'])) {
            $facts['client'] = new OAuthClient(...$facts['client']);
        }
        return $isJob ? new JobFacts(...self::named($facts)) : new RequestFacts(...self::named($facts));
    }

    /** @param array<string, mixed> $facts */
    private static function attemptFacts(array $facts): AttemptFacts
    {
        $device = isset($facts['device']) ? new Device(...self::named($facts['device'])) : null;
        return new AttemptFacts(...[...self::named($facts), 'device' => $device]);
    }

    /** @return array<string, mixed> */
    private static function ofAnswer(Answer $answer): array
    {
        return [
            'is' => 'answer',
            'decision' => $answer->decision,
            'status' => $answer->status,
            'mode' => $answer->mode,
            'rule' => $answer->rule,
            'error' => $answer->error,
            'decided_by' => $answer->decidedBy,
            'request_id' => $answer->requestId,
            'receipt' => $answer->receipt,
            'headers' => $answer->headers,
            'body' => $answer->body,
        ];
    }

    /** @return array<string, mixed> */
    private static function ofError(PalisadeException $error): array
    {
        $shown = ['says' => $error->getMessage(), 'shows' => (string) $error, 'dumps' => print_r($error, true)];
        return match (true) {
            $error instanceof Blocked => [...self::ofAnswer($error->answer()), 'is' => 'blocked'],
            $error instanceof BadInput
                => [...self::ofAnswer($error->answer()), 'is' => 'bad_input', 'field' => $error->field, 'says' => $shown['says']],
            $error instanceof BadFacts => ['is' => 'bad_facts', 'field' => $error->field, 'says' => $shown['says']],
            $error instanceof Misconfigured => ['is' => 'misconfigured', 'says' => $shown['says'], 'shows' => $shown['shows']],
            $error instanceof Unavailable => ['is' => 'unavailable', ...$shown],
        };
    }

    private function partOf(mixed $expected, mixed $found, string $where): void
    {
        if (is_array($expected)) {
            self::assertIsArray($found, $where);
            if (array_is_list($expected) && $expected !== []) {
                self::assertCount(count($expected), $found, $where);
            }
            foreach ($expected as $name => $each) {
                $this->partOf($each, $found[$name] ?? null, "$where.$name");
            }
        } elseif (is_string($expected) && str_starts_with($expected, '$')) {
            $this->bound[$expected] ??= $found;
            self::assertNotNull($found, $where);
            self::assertSame($this->bound[$expected], $found, $where);
        } elseif ($expected === '*') {
            self::assertNotContains($found, [null, ''], $where);
        } else {
            self::assertSame($expected, $found, $where);
        }
    }
}
