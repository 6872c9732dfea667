<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Asks about requests, for frameworks that have no middleware here: before authentication
 * (`enter`) and after it (`identify`). What refuses is thrown: `Blocked`, and `BadInput` for what
 * cannot be read.
 */
final class Edge
{
    private readonly TrustedProxies $proxies;

    /**
     * @param list<string> $trustedProxies those whose `X-Forwarded-For` is believed: networks,
     *     addresses, or `unix` where the server knows no peer
     * @param string|null $layers `edge`; `all` asks once for everything, for applications without
     *     identities; `null` asks nothing here and leaves it to a proxy in front
     */
    public function __construct(
        private readonly Palisade $palisade,
        array $trustedProxies,
        private readonly OnUnavailable|Caps $onUnavailable,
        private readonly ?string $layers = 'edge',
    ) {
        $this->proxies = new TrustedProxies($trustedProxies);
    }

    /**
     * Asks before authentication: throttle, allowlist, address.
     *
     * @param string|null $peer who is connected: `REMOTE_ADDR`, never a header
     * @param string $path as it was sent, without the query
     * @param array<string, string|list<string|null>> $headers
     * @param array<string, mixed> $facts what the host knows besides: a class, a cost, …
     */
    public function enter(
        #[\SensitiveParameter] ?string $peer,
        string $method,
        #[\SensitiveParameter] string $path,
        #[\SensitiveParameter] array $headers,
        array $facts = [],
    ): Seen {
        $headers = array_change_key_case($headers);
        $lines = static fn (string $name): array => array_values(array_filter((array) ($headers[$name] ?? []), 'is_string'));
        $given = $this->proxies->trusts($peer) ? $lines('x-request-id')[0] ?? '' : '';
        $isPlain = preg_match('#^[A-Za-z0-9_.:/+=@~-]{1,128}$#D', $given) === 1;
        $requestId = $isPlain ? $given : Question::newId();
        try {
            $ip = $this->proxies->client($peer, $lines('x-forwarded-for'));
        } catch (BadFacts $bad) {
            throw new BadInput($bad->getMessage(), $bad->field, Answer::badRequest($requestId, $bad->getMessage(), null));
        }
        $seen = new Seen((new RequestFacts(
            ip: $ip,
            method: $method,
            path: self::routed($path, $requestId),
            layers: $this->layers ?? 'all',
            userAgent: $lines('user-agent')[0] ?? null,
            requestId: $requestId,
        ))->with($facts));
        if ($this->layers !== null) {
            $this->asked($seen, $seen->facts, $this->onUnavailable);
        }
        return $seen;
    }

    /**
     * Asks after authentication: organisation, user, token, scopes, quotas. Nobody is asked about
     * too: a route with a scope is not for callers without an identity.
     *
     * @param array<string, mixed> $facts what the host knows besides: a class, a cost, …
     */
    public function identify(Seen $seen, ?Identity $who, OnUnavailable|Caps $onUnavailable, array $facts = []): void
    {
        $named = [
            'layers' => 'identity',
            'org' => $who?->org,
            'user' => $who?->user,
            'token' => $who?->token,
            'scopes' => $who?->scopes,
            'apiKey' => $who?->apiKey,
        ];
        $this->asked($seen, $seen->facts->with([...$named, ...$facts]), $onUnavailable);
    }

    private function asked(Seen $seen, RequestFacts $facts, OnUnavailable|Caps $choice): void
    {
        $answer = $this->palisade->check($facts, $choice);
        $seen->add($answer);
        $answer->orThrow();
    }

    /**
     * The path in the one spelling that is counted. Routers differ in how they read escaped
     * slashes and dots as segments, so a path with them could be counted as another one than the
     * router takes: it is refused, as Palisade refuses the slashes.
     */
    private static function routed(string $path, string $requestId): string
    {
        $decoded = rawurldecode($path);
        $segments = explode('/', $decoded);
        $isAmbiguous = preg_match('/%2f|%5c|\\\\/i', $path) === 1 || array_intersect(['.', '..'], $segments) !== [];
        if ($isAmbiguous || preg_match('//u', $decoded) !== 1) {
            $detail = '`path` must be UTF-8 without dot segments or escaped slashes';
            throw new BadInput($detail, 'path', Answer::badRequest($requestId, $detail, 'path'));
        }
        $plain = '/[^A-Za-z0-9\/:@!$&\'()*+,;=~._-]/';
        $escaped = (string) preg_replace_callback($plain, static fn (array $found): string => rawurlencode($found[0]), $decoded);
        return $escaped === '' ? '/' : $escaped;
    }
}
