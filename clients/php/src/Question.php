<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * What is sent, its id, and what local caps count on.
 *
 * @internal
 */
final class Question
{
    private const HEADER_CHARS_MAX = 512;

    /**
     * @param array<string, mixed> $wire
     * @param list<string> $subjects
     */
    private function __construct(
        #[\SensitiveParameter] public readonly array $wire,
        public readonly string $requestId,
        #[\SensitiveParameter] public readonly array $subjects,
    ) {
    }

    /**
     * @param array<string, mixed> $facts `null` is not sent
     * @param array<string, ?string> $subjects kind and value; nothing is not counted
     */
    public static function of(#[\SensitiveParameter] array $facts, string $requestId, #[\SensitiveParameter] array $subjects): self
    {
        $named = array_filter($subjects, static fn (?string $value): bool => $value !== null && $value !== '');
        $listed = array_map(static fn (string $kind, string $value): string => "$kind $value", array_keys($named), $named);
        return new self(self::present([...$facts, 'request_id' => $requestId]), $requestId, $listed);
    }

    /**
     * The same question under a fresh id, with other facts.
     *
     * @param array<string, mixed> $wire
     */
    public function with(#[\SensitiveParameter] array $wire): self
    {
        $requestId = self::newId();
        return new self([...$wire, 'request_id' => $requestId], $requestId, $this->subjects);
    }

    /** A fresh id: it joins a check with its outcome, and makes a second try harmless. */
    public static function newId(): string
    {
        return bin2hex(random_bytes(16));
    }

    /**
     * @param array<string, mixed> $facts
     * @return array<string, mixed>
     */
    public static function present(#[\SensitiveParameter] array $facts): array
    {
        return array_filter($facts, static fn (mixed $value): bool => $value !== null);
    }

    /** A client's header, printable and bounded, so that a strange one does not make the question unreadable. */
    public static function headerText(?string $value): ?string
    {
        $value = substr($value ?? '', 0, 4 * self::HEADER_CHARS_MAX);
        if (preg_match('//u', $value) !== 1) {
            $value = (string) preg_replace('/[^\x20-\x7e]/', '', $value);
        }
        $plain = (string) preg_replace('/[\p{C}\p{Zl}\p{Zp}]/u', '', $value);
        preg_match('/^.{0,' . self::HEADER_CHARS_MAX . '}/us', $plain, $found);
        return ($found[0] ?? '') === '' ? null : $found[0];
    }
}
