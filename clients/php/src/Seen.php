<?php

declare(strict_types=1);

namespace Palisade\Client;

/** One request on its way through the application, and every answer about it. */
final class Seen
{
    /** @var list<Answer> */
    private array $answers = [];

    /** @internal */
    public function __construct(public readonly RequestFacts $facts)
    {
    }

    /** The client's address, for the guard. */
    public function ip(): string
    {
        return $this->facts->ip;
    }

    public function requestId(): string
    {
        return $this->facts->requestId;
    }

    /** @internal */
    public function add(Answer $answer): void
    {
        $this->answers[] = $answer;
    }

    /**
     * Headers of the answer to the client.
     *
     * @return array<string, string>
     */
    public function headers(): array
    {
        return [...Answer::mergedHeaders($this->answers), 'X-Request-Id' => $this->requestId()];
    }
}
