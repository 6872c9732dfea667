<?php

declare(strict_types=1);

namespace Palisade\Client\Tests;

use Illuminate\Container\Container;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Events\Dispatcher;
use Illuminate\Http\Request;
use Illuminate\Routing\Pipeline;
use Illuminate\Routing\Router;
use Nyholm\Psr7\Factory\Psr17Factory;
use Nyholm\Psr7\Response;
use Nyholm\Psr7\ServerRequest;
use Palisade\Client\OnUnavailable;
use Palisade\Client\Palisade;
use PHPUnit\Framework\TestCase;
use Psr\Http\Message\ResponseInterface;
use Psr\Http\Message\ServerRequestInterface;
use Psr\Http\Server\RequestHandlerInterface;

/** The page of the documentation does what it says, pasted into a new project. */
final class PageTest extends TestCase
{
    private string $home;
    private Server $server;

    protected function setUp(): void
    {
        $this->home = Place::folder();
        $page = (string) file_get_contents(Place::docs() . '/php.md');
        preg_match_all('~^```(?:php\n<\?php|toml)\n(?://|#) (\S+)\n(.*?)^```$~ms', $page, $blocks, PREG_SET_ORDER);
        self::assertSame(preg_match_all('/^```(php|toml)$/m', $page), count($blocks), 'a block has no name');
        foreach ([...$blocks, ['', 'vendor/autoload.php', 'require ' . var_export(__DIR__ . '/bootstrap.php', true) . ';']] as [, $name, $text]) {
            @mkdir(dirname("{$this->home}/$name"), 0700, true);
            $isPolicy = $name === 'policy.toml';
            file_put_contents("{$this->home}/$name", $isPolicy ? $text : "<?php\n" . self::patient($text));
        }
        $this->server = new Server((string) file_get_contents("{$this->home}/policy.toml"));
        putenv("PALISADE={$this->server->url}");
    }

    protected function tearDown(): void
    {
        putenv('PALISADE');
        $this->server->stop();
    }

    /** A busy machine may need longer than the default deadline. */
    private static function patient(string $text): string
    {
        return strtr($text, [
            "'http://127.0.0.1:8080')" => "'http://127.0.0.1:8080', deadline: 30)",
            "['services.palisade.url'])" => "['services.palisade.url'], deadline: 30)",
        ]);
    }

    private function says(string $script): string
    {
        exec('cd ' . escapeshellarg($this->home) . ' && ' . escapeshellarg(PHP_BINARY) . " $script 2>&1", $lines, $code);
        self::assertSame(0, $code, implode("\n", $lines));
        return implode("\n", $lines);
    }

    public function testAsk(): void
    {
        self::assertSame('allow 200 9', $this->says('ask.php'));
    }

    public function testJobs(): void
    {
        self::assertStringStartsWith('5 queued, come back in ', $this->says('jobs.php'));
    }

    public function testReserveAndSettle(): void
    {
        self::assertSame("812\n429 rate_limit_exceeded", $this->says('chat.php'));
    }

    public function testDoubles(): void
    {
        $phpunit = escapeshellarg((string) realpath($_SERVER['argv'][0]));
        self::assertStringContainsString('OK (3 tests', $this->says("$phpunit --bootstrap vendor/autoload.php --do-not-cache-result LoginTest.php"));
    }

    public function testPlainPhp(): void
    {
        $site = new Site($this->home, 'public/index.php');
        [$status, $headers, $body] = $site->send('GET', '/reports/2026?a=b', ['Authorization' => 'Bearer demo']);
        self::assertSame([200, '2026'], [$status, $body]);
        self::assertArrayHasKey('x-ratelimit-limit', $headers);
        self::assertSame(403, $site->send('GET', '/reports/2026')[0], 'n4');
        self::assertSame(400, $site->send('GET', '/reports/a%2Fb')[0]);
        $this->isGuarded(static function (string $username, string $password) use ($site): array {
            [$status, , $body] = $site->signIn($username, $password);
            return [$status, $body];
        });
    }

    public function testPsr15(): void
    {
        $middlewares = require "{$this->home}/middleware.php";
        require_once "{$this->home}/SignIn.php";
        $guard = (new Palisade($this->server->url, deadline: 30))->guard(OnUnavailable::Closed);
        $signIn = new \SignIn($guard, new Psr17Factory());
        $application = new class ($signIn) implements RequestHandlerInterface {
            public function __construct(private RequestHandlerInterface $signIn)
            {
            }

            public function handle(ServerRequestInterface $request): ResponseInterface
            {
                return $request->getUri()->getPath() === '/session' ? $this->signIn->handle($request) : new Response(200);
            }
        };
        $send = static function (string $method, string $path, array $headers = [], array $form = []) use ($middlewares, $application): ResponseInterface {
            $request = new ServerRequest($method, $path, $headers, serverParams: ['REMOTE_ADDR' => '203.0.113.9']);
            return (new Stack($middlewares, $application))->handle($request->withParsedBody($form));
        };
        $report = $send('GET', '/reports/2026', ['Authorization' => 'Bearer demo']);
        self::assertSame(200, $report->getStatusCode());
        self::assertNotSame('', $report->getHeaderLine('X-RateLimit-Limit'));
        self::assertSame(403, $send('GET', '/reports/2026')->getStatusCode(), 'n4');
        $this->isGuarded(static function (string $username, string $password) use ($send): array {
            $form = ['username' => $username, 'password' => $password];
            $response = $send('POST', '/session', ['X-Device' => 'd1'], $form);
            return [$response->getStatusCode(), (string) $response->getBody()];
        });
    }

    public function testLaravel(): void
    {
        foreach (['Providers/PalisadeServiceProvider', 'Http/Middleware/PalisadeEdge', 'Http/Middleware/PalisadeIdentity', 'Http/Controllers/SessionController'] as $class) {
            require_once "{$this->home}/app/$class.php";
        }
        $container = new Container();
        $container->instance('config', ['services.palisade.url' => $this->server->url]);
        $container->singleton(ExceptionHandler::class, Handler::class);
        $provider = new \App\Providers\PalisadeServiceProvider($container);
        $provider->register();
        $provider->boot();
        $router = new Router(new Dispatcher($container), $container);
        $router->get('/reports/{name}', static fn (string $name): string => $name)->middleware(\App\Http\Middleware\PalisadeIdentity::class);
        $router->post('/session', [\App\Http\Controllers\SessionController::class, 'store']);
        $send = static function (Request $request, ?object $user = null) use ($container, $router): object {
            $request->setUserResolver(static fn (): ?object => $user);
            $request->server->set('REMOTE_ADDR', '203.0.113.9');
            $container->instance(Request::class, $request);
            return (new Pipeline($container))->send($request)->through([\App\Http\Middleware\PalisadeEdge::class])
                ->then(static fn (Request $request): object => $router->dispatch($request));
        };
        $report = $send(Request::create('/reports/2026'), (object) ['org' => 'acme', 'id' => 7]);
        self::assertSame([200, '2026'], [$report->getStatusCode(), $report->getContent()]);
        self::assertTrue($report->headers->has('X-RateLimit-Limit'));
        $nobody = $send(Request::create('/reports/2026'));
        self::assertSame(403, $nobody->getStatusCode(), 'n4');
        self::assertSame(json_decode((string) $nobody->getContent(), true)['request_id'], $nobody->headers->get('X-Request-Id'));
        self::assertSame(400, $send(Request::create('/reports/a%2Fb'))->getStatusCode());
        $this->isGuarded(static function (string $username, string $password) use ($send): array {
            $form = ['username' => $username, 'password' => $password];
            $response = $send(Request::create('/session', 'POST', $form, server: ['HTTP_X_DEVICE' => 'd1']));
            return [$response->getStatusCode(), $response->getContent()];
        });
    }

    /** @param callable(string, string): array{int, string} $signIn */
    private function isGuarded(callable $signIn): void
    {
        self::assertSame(200, $signIn('ann', 'correct horse')[0]);
        foreach (['', str_repeat('n', 600)] as $name) {
            [$status, $body] = $signIn($name, 'guess');
            self::assertSame(400, $status, 'n3');
            self::assertSame('account', json_decode($body, true)['field'], 'n3');
        }
        $statuses = array_map(static fn (): int => $signIn('bob', 'guess')[0], range(1, 3));
        self::assertSame([401, 401, 429], $statuses);
    }
}
