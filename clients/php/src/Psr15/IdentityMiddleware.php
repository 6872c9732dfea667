<?php

declare(strict_types=1);

namespace Palisade\Client\Psr15;

use Palisade\Client\Caps;
use Palisade\Client\Edge;
use Palisade\Client\Identity;
use Palisade\Client\OnUnavailable;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\MiddlewareInterface;
use Psr\Http\Server\RequestHandlerInterface;

/** After authentication: organisation, user, token, scopes, quotas. It stands inside `EdgeMiddleware`. */
final class IdentityMiddleware implements MiddlewareInterface
{
    /**
     * @param \Closure(ServerRequestInterface): ?Identity $identity whom authentication found;
     *     `null` for nobody, who is refused where the route has a scope
     * @param (\Closure(ServerRequestInterface): array<string, mixed>)|null $facts what the host
     *     knows besides: a class, a cost, …
     */
    public function __construct(
        private readonly \Closure $identity,
        private readonly OnUnavailable|Caps $onUnavailable,
        private readonly ?\Closure $facts = null,
    ) {
    }

    public function process(ServerRequestInterface $request, RequestHandlerInterface $handler): ResponseInterface
    {
        $seen = EdgeMiddleware::seen($request);
        $facts = $this->facts === null ? [] : ($this->facts)($request);
        $request->getAttribute(Edge::class)->identify($seen, ($this->identity)($request), $this->onUnavailable, $facts);
        return $handler->handle($request);
    }
}
