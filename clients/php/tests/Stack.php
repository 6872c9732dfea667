<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\MiddlewareInterface;
use Psr\Http\Server\RequestHandlerInterface;

/** Middlewares of PSR-15 around a handler, outermost first. */
final class Stack implements RequestHandlerInterface
{
    /** @param list<MiddlewareInterface> $middlewares */
    public function __construct(private array $middlewares, private RequestHandlerInterface $handler)
    {
    }

    public function handle(ServerRequestInterface $request): ResponseInterface
    {
        [$first, $rest] = [$this->middlewares[0] ?? null, array_slice($this->middlewares, 1)];
        return $first === null ? $this->handler->handle($request) : $first->process($request, new self($rest, $this->handler));
    }
}
