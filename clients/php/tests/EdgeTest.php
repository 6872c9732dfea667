<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Nyholm\Psr7\Factory\Psr17Factory;
use Nyholm\Psr7\Response;
use Nyholm\Psr7\ServerRequest;
use Palisade\Client\BadInput;
use Palisade\Client\Blocked;
use Palisade\Client\Edge;
use Palisade\Client\Identity;
use Palisade\Client\Misconfigured;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use Palisade\Client\Psr15\EdgeMiddleware;
use Palisade\Client\Psr15\IdentityMiddleware;
use Palisade\Client\Testing\FakePalisade;
use PHPUnit\Framework\TestCase;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\RequestHandlerInterface;

/** Requests before and after authentication. */
final class EdgeTest extends TestCase
{
    public function testBothLayersAreAskedUnderOneId(): void
    {
        $palisade = new FakePalisade();
        $edge = new Edge($palisade, ['127.0.0.1'], OnUnavailable::Closed);
        $headers = ['X-Request-ID' => ['from-the-proxy'], 'X-Forwarded-For' => '198.51.100.7', 'User-Agent' => "a\0b"];
        $seen = $edge->enter('127.0.0.1', 'GET', '/a', $headers, ['class' => 'bulk']);
        $edge->identify($seen, new Identity(org: 'acme', scopes: []), OnUnavailable::Closed, ['cost' => 3]);
        [$first, $second] = array_column($palisade->asked(), 'facts');
        self::assertSame(['198.51.100.7', 'from-the-proxy'], [$seen->ip(), $seen->requestId()]);
        self::assertSame(['edge', 'bulk', 'ab', 'from-the-proxy'], [$first['layers'], $first['class'], $first['user_agent'], $first['request_id']]);
        self::assertArrayNotHasKey('org', $first);
        self::assertSame(['identity', 'acme', [], 3], [$second['layers'], $second['org'], $second['scopes'], $second['cost']]);
        self::assertSame('from-the-proxy', $second['request_id']);
    }

    public function testAnIdThatIsNotPlainOrNotFromAProxyIsReplaced(): void
    {
        $edge = new Edge(new FakePalisade(), ['127.0.0.1'], OnUnavailable::Closed);
        foreach ([['127.0.0.1', 'a b'], ['127.0.0.1', "a\n"], ['203.0.113.5', 'chosen']] as [$peer, $id]) {
            self::assertSame(32, strlen($edge->enter($peer, 'GET', '/', ['x-request-id' => $id])->requestId()));
        }
    }

    public function testNoSpellingOfAPathIsCountedAsAnother(): void
    {
        $palisade = new FakePalisade();
        $edge = new Edge($palisade, [], OnUnavailable::Closed);
        foreach (['/a%2Fb', '/a%5cb', '/a\\b', '/a/../b', '/a/%2e%2e/b', '/./b', '/a%FF'] as $path) {
            try {
                $edge->enter('203.0.113.5', 'GET', $path, []);
                self::fail("$path is taken");
            } catch (BadInput $bad) {
                self::assertSame(['path', 400], [$bad->field, $bad->answer()->status]);
            }
        }
        self::assertSame([], $palisade->ops());
        foreach (['/%72eports/%7e' => '/reports/~', '/a%20b/%C3%A4' => '/a%20b/%C3%A4', '/a%252fb' => '/a%252fb', '' => '/', '/ä' => '/%C3%A4'] as $path => $counted) {
            self::assertSame($counted, $edge->enter('203.0.113.5', 'GET', $path, [])->facts->path);
        }
    }

    public function testAChainThatCannotBeReadIsA400AndAnUnknownPeerIsNot(): void
    {
        $edge = new Edge(new FakePalisade(), ['127.0.0.1'], OnUnavailable::Closed);
        try {
            $edge->enter('127.0.0.1', 'GET', '/', ['X-Forwarded-For' => 'secret-host']);
            self::fail('it is taken');
        } catch (BadInput $bad) {
            self::assertSame(400, $bad->answer()->status);
            self::assertStringNotContainsString('secret', $bad . print_r($bad, true));
        }
        $this->expectException(Misconfigured::class);
        $edge->enter(null, 'GET', '/', []);
    }

    public function testALayerThatAsksNothingLeavesItToTheProxyInFront(): void
    {
        $palisade = new FakePalisade();
        $palisade->goAway();
        self::assertSame('203.0.113.5', (new Edge($palisade, [], OnUnavailable::Closed, layers: null))->enter('203.0.113.5', 'GET', '/', [])->ip());
        $this->expectException(Blocked::class);
        (new Edge($palisade, [], OnUnavailable::Closed))->enter('203.0.113.5', 'GET', '/', []);
    }

    /** @param array<string, string> $headers */
    private static function through(Palisade $palisade, array $headers = [], ?\Closure $handle = null): ResponseInterface
    {
        $handler = new class ($handle ?? static fn (): Response => new Response(200, ['X-RateLimit-Limit' => 'mine'])) implements RequestHandlerInterface {
            public function __construct(private \Closure $handle)
            {
            }

            public function handle(ServerRequestInterface $request): ResponseInterface
            {
                return ($this->handle)($request);
            }
        };
        $identity = static fn (ServerRequestInterface $request): ?Identity
            => $request->hasHeader('Authorization') ? new Identity(org: 'acme', user: 'u1', scopes: ['reports:read']) : null;
        $stack = new Stack([
            new EdgeMiddleware($palisade, new Psr17Factory(), trustedProxies: [], onUnavailable: OnUnavailable::Closed),
            new IdentityMiddleware($identity, OnUnavailable::Closed),
        ], $handler);
        return $stack->handle(new ServerRequest('GET', '/reports/1', $headers, serverParams: ['REMOTE_ADDR' => '203.0.113.5']));
    }

    public function testTheNearestLimitsHeadersAreShown(): void
    {
        $policy = "[[route]]\npath = \"/reports/*\"\nclass = \"reports\"\nscope = \"reports:read\"\n"
            . "[[limit]]\nname = \"reports-per-org\"\nby = [\"org\"]\nclass = \"reports\"\nrate = \"10/min\"\n";
        $server = new Server($policy);
        $palisade = new Palisade($server->url, deadline: 30);
        $passed = self::through($palisade, ['Authorization' => 'x']);
        self::assertSame([200, '10', '9'], [
            $passed->getStatusCode(), $passed->getHeaderLine('X-RateLimit-Limit'), $passed->getHeaderLine('X-RateLimit-Remaining'),
        ]);
        self::assertSame(403, self::through($palisade)->getStatusCode(), 'n4: nobody');
        for ($asked = 0; $asked < 9; $asked++) {
            self::through($palisade, ['Authorization' => 'x']);
        }
        $refused = self::through($palisade, ['Authorization' => 'x']);
        $body = json_decode((string) $refused->getBody(), true);
        self::assertSame([429, 'application/json'], [$refused->getStatusCode(), $refused->getHeaderLine('Content-Type')]);
        self::assertNotSame('', $refused->getHeaderLine('Retry-After'));
        self::assertSame($body['request_id'], $refused->getHeaderLine('X-Request-Id'));
        $server->stop();
    }

    public function testWhatAGuardInsideRefusesIsSentAndWhatElseIsThrownIsNot(): void
    {
        $palisade = new FakePalisade();
        $palisade->refuse('login.check', retryAfter: 30);
        $login = static function (ServerRequestInterface $request) use ($palisade): ResponseInterface {
            $facts = new \Palisade\Client\AttemptFacts(EdgeMiddleware::seen($request)->ip(), 'ann');
            return $palisade->guard(OnUnavailable::Closed)->login($facts, static fn (): Response => new Response());
        };
        $refused = self::through($palisade, handle: $login);
        self::assertSame([429, '30'], [$refused->getStatusCode(), $refused->getHeaderLine('Retry-After')]);
        $this->expectException(\DomainException::class);
        self::through($palisade, handle: static fn () => throw new \DomainException('mine'));
    }
}
