<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Fields of a question: which one was refused, and whether a client sent its value.
 *
 * @internal
 */
final class Fields
{
    // The others (`class`, `cost`, `layers`, `ip`, …) are chosen by the application: a wrong one is
    // its own mistake.
    private const FROM_CLIENTS = [
        'method', 'path', 'host', 'user_agent', 'accept_language', 'platform',
        'account', 'username', 'org', 'user', 'token', 'scopes', 'api_key', 'client.id',
        'device', 'device.session_id', 'device.client_id', 'device.fingerprint',
    ];

    /** True if the field holds what a client sent; `checks[1].path` is one of a batch. */
    public static function areFromClient(?string $field): bool
    {
        $name = preg_replace(['/^checks\[\d+\]\./', '/\[.*$/'], '', $field ?? '');
        return in_array($name, self::FROM_CLIENTS, true);
    }

    /**
     * Name of the first field that is not UTF-8, if there is one: JSON cannot carry it.
     *
     * @param array<mixed> $wire
     */
    public static function notUnicode(#[\SensitiveParameter] array $wire): ?string
    {
        foreach (self::texts($wire, '') as [$name, $text]) {
            if (preg_match('//u', $text) !== 1) {
                return $name;
            }
        }
        return null;
    }

    /**
     * Name of the field that takes most room, for a question that is too large.
     *
     * @param array<mixed> $wire
     */
    public static function longest(#[\SensitiveParameter] array $wire): ?string
    {
        $sizes = [];
        foreach (self::texts($wire, '') as [$name, $text]) {
            $whole = str_starts_with($name, 'checks[') ? $name : explode('[', $name)[0];
            $sizes[$whole] = ($sizes[$whole] ?? 0) + strlen($text);
        }
        arsort($sizes);
        return array_key_first($sizes);
    }

    /** @return iterable<array{string, string}> */
    private static function texts(mixed $value, string $name): iterable
    {
        if (is_string($value)) {
            yield [$name, $value];
        } elseif (is_array($value)) {
            $isList = array_is_list($value);
            foreach ($value as $key => $each) {
                $inner = $isList ? "{$name}[$key]" : ($name === '' ? (string) $key : "$name.$key");
                yield from self::texts($each, $inner);
            }
        }
    }
}
