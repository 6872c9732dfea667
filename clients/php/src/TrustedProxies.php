<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * The proxies whose `X-Forwarded-For` is believed (I-XFF). The list is read from the right, and
 * the first address that is not one of them is the client: what stands left of it is the
 * client's own claim.
 *
 * @internal
 */
final class TrustedProxies
{
    private const CHAIN_CHARS_MAX = 500;

    /** @var list<array{string, int}> packed addresses with the length of their prefix */
    private array $networks = [];
    private bool $unix = false;

    /** @param list<string> $given networks, addresses, or `unix` for servers that know no peer */
    public function __construct(array $given)
    {
        foreach ($given as $each) {
            if ($each === 'unix') {
                $this->unix = true;
                continue;
            }
            [$address, $length] = [...explode('/', $each, 2), null];
            $packed = self::packed($address);
            $bits = $packed === null ? -1 : strlen($packed) * 8;
            if ($packed === null || ($length !== null && (!ctype_digit($length) || (int) $length > $bits))) {
                throw new Misconfigured('`trustedProxies` holds something that is no network');
            }
            $this->networks[] = [$packed, (int) ($length ?? $bits)];
        }
    }

    /**
     * The client's address: the peer's, unless the peer is a trusted proxy. `BadFacts` is thrown
     * if the list cannot be read.
     *
     * @param list<string> $chain every `X-Forwarded-For`
     */
    public function client(#[\SensitiveParameter] ?string $peer, #[\SensitiveParameter] array $chain): string
    {
        $address = $this->peer($peer);
        if ($address !== null && !$this->trustsAddress($address)) {
            return (string) inet_ntop($address);
        }
        if ($chain === []) {
            return $address === null ? throw self::bad('is missing') : (string) inet_ntop($address);
        }
        return (string) inet_ntop($this->behind(implode(',', $chain)));
    }

    /** True if what the peer says about a request is believed. */
    public function trusts(#[\SensitiveParameter] ?string $peer): bool
    {
        $address = $this->peer($peer);
        return $address === null || $this->trustsAddress($address);
    }

    /** What one client owns: an IPv4 address, the /64 of an IPv6 address. */
    public static function prefix(#[\SensitiveParameter] string $ip): string
    {
        $packed = self::packed($ip);
        return match (strlen($packed ?? '')) {
            16 => (string) inet_ntop(substr($packed, 0, 8) . str_repeat("\0", 8)),
            4 => (string) inet_ntop($packed),
            default => $ip,
        };
    }

    private function peer(?string $peer): ?string
    {
        if ($peer === null || $peer === '' || $peer === 'unix:') {
            return $this->unix ? null : throw new Misconfigured(
                'the server gives no peer address: behind a Unix socket add `unix` to `trustedProxies`',
            );
        }
        return self::packed(explode('%', $peer)[0]) ?? throw new Misconfigured('the peer address is none');
    }

    private function behind(string $chain): string
    {
        if (strlen($chain) > self::CHAIN_CHARS_MAX) {
            throw self::bad('is too long');
        }
        $address = '';
        foreach (array_reverse(explode(',', $chain)) as $element) {
            $address = self::hop(trim($element)) ?? throw self::bad('holds an element that is no address');
            if (!$this->trustsAddress($address)) {
                break;
            }
        }
        return $address;
    }

    private function trustsAddress(string $address): bool
    {
        foreach ($this->networks as [$network, $length]) {
            $mask = str_repeat("\xff", intdiv($length, 8)) . ($length % 8 ? chr(0xff << (8 - $length % 8) & 0xff) : '');
            $mask = str_pad($mask, strlen($network), "\0");
            if (strlen($network) === strlen($address) && ($address & $mask) === ($network & $mask)) {
                return true;
            }
        }
        return false;
    }

    /** `ip`, `ip:port`, `[v6]` or `[v6]:port`; a zone means nothing here. */
    private static function hop(string $text): ?string
    {
        if (preg_match('/^\[([^\]]*:[^\]]*)\](?::(\d{1,5}))?$/D', $text, $parts) === 1
            || preg_match('/^([^:]+):(\d{1,5})$/D', $text, $parts) === 1) {
            return (int) ($parts[2] ?? 0) < 65_536 ? self::packed($parts[1]) : null;
        }
        return self::packed($text);
    }

    private static function packed(string $text): ?string
    {
        if (filter_var($text, FILTER_VALIDATE_IP) === false) {
            return null;
        }
        $packed = (string) inet_pton($text);
        return str_starts_with($packed, str_repeat("\0", 10) . "\xff\xff") ? substr($packed, 12) : $packed;
    }

    private static function bad(string $why): BadFacts
    {
        return new BadFacts("`X-Forwarded-For` $why", 'x-forwarded-for');
    }
}
