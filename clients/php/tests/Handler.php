<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Illuminate\Contracts\Debug\ExceptionHandler;

/** As much of Laravel's exception handler as applications register with: `renderable`. */
final class Handler implements ExceptionHandler
{
    /** @var list<\Closure> */
    private array $renderables = [];

    public function renderable(\Closure $render): void
    {
        $this->renderables[] = $render;
    }

    public function report(\Throwable $e): void
    {
    }

    public function shouldReport(\Throwable $e): bool
    {
        return true;
    }

    public function render($request, \Throwable $e)
    {
        foreach ($this->renderables as $render) {
            $type = (string) (new \ReflectionFunction($render))->getParameters()[0]->getType();
            if ($e instanceof $type) {
                return $render($e);
            }
        }
        throw $e;
    }

    public function renderForConsole($output, \Throwable $e): void
    {
        throw $e;
    }
}
