<?php

declare(strict_types=1);

namespace Palisade\Client\Psr15;

use Palisade\Client\Caps;
use Palisade\Client\Edge;
use Palisade\Client\Misconfigured;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use Palisade\Client\Refused;
use Palisade\Client\Seen;
use Psr\Http\Message\ResponseFactoryInterface;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\MiddlewareInterface;
use Psr\Http\Server\RequestHandlerInterface;

/**
 * Before authentication: throttle, allowlist, address. It stands outermost but for CORS and error
 * pages, and also sends what a handler or a guard inside refuses.
 */
final class EdgeMiddleware implements MiddlewareInterface
{
    private readonly Edge $edge;

    /**
     * @param list<string> $trustedProxies those whose `X-Forwarded-For` is believed
     * @param string|null $layers `edge`, `all` or, for nothing, `null`
     * @param (\Closure(ServerRequestInterface): array<string, mixed>)|null $facts what the host
     *     knows besides: a class, a cost, …
     */
    public function __construct(
        Palisade $palisade,
        private readonly ResponseFactoryInterface $responses,
        array $trustedProxies,
        OnUnavailable|Caps $onUnavailable,
        ?string $layers = 'edge',
        private readonly ?\Closure $facts = null,
    ) {
        $this->edge = new Edge($palisade, $trustedProxies, $onUnavailable, $layers);
    }

    /** What the middleware knows about a request; `seen($request)->ip()` is for the guard. */
    public static function seen(ServerRequestInterface $request): Seen
    {
        return $request->getAttribute(Seen::class)
            ?? throw new Misconfigured('use `EdgeMiddleware` before everything else');
    }

    public function process(ServerRequestInterface $request, RequestHandlerInterface $handler): ResponseInterface
    {
        $seen = null;
        try {
            $seen = $this->edge->enter(
                $request->getServerParams()['REMOTE_ADDR'] ?? null,
                $request->getMethod(),
                $request->getUri()->getPath(),
                $request->getHeaders(),
                $this->facts === null ? [] : ($this->facts)($request),
            );
            $response = $handler->handle($request->withAttribute(Seen::class, $seen)->withAttribute(Edge::class, $this->edge));
            $headers = $seen->headers();
        } catch (Refused $refused) {
            $answer = $refused->answer();
            $response = $this->responses->createResponse($answer->status);
            $response->getBody()->write($answer->json());
            $headers = [...($seen?->headers() ?? []), ...$answer->refusalHeaders()];
        }
        foreach ($headers as $name => $value) {
            $response = $response->withHeader($name, $value);
        }
        return $response;
    }
}
