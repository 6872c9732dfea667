<?php

declare(strict_types=1);

namespace Palisade\Client;

/** What is known about one request. `token` is the token's id, never the token. */
final class RequestFacts implements CheckFacts
{
    public readonly string $requestId;

    /**
     * @param string $layers `all`, `edge` or `identity` (L-LAYERS)
     * @param list<string>|null $scopes
     * @param bool|null $receipt asks for one, with which the charge can be given back
     */
    public function __construct(
        #[\SensitiveParameter] public readonly string $ip,
        public readonly string $method,
        #[\SensitiveParameter] public readonly string $path,
        public readonly string $layers = 'all',
        public readonly ?string $class = null,
        #[\SensitiveParameter] public readonly ?string $userAgent = null,
        #[\SensitiveParameter] public readonly ?string $org = null,
        #[\SensitiveParameter] public readonly ?string $user = null,
        #[\SensitiveParameter] public readonly ?string $token = null,
        public readonly ?array $scopes = null,
        public readonly ?OAuthClient $client = null,
        #[\SensitiveParameter] public readonly ?string $apiKey = null,
        public readonly ?int $cost = null,
        public readonly ?bool $receipt = null,
        ?string $requestId = null,
        public readonly ?string $correlationId = null,
    ) {
        $this->requestId = $requestId ?? Question::newId();
    }

    /**
     * The same facts with others in their place, by their names.
     *
     * @param array<string, mixed> $changes
     */
    public function with(#[\SensitiveParameter] array $changes): self
    {
        return new self(...[...get_object_vars($this), ...$changes]);
    }

    /** @internal */
    public function question(): Question
    {
        $client = $this->client;
        // Of a request that is asked about in two layers the first one counts the address.
        $address = $this->layers === 'identity' ? [] : ['ip' => $this->ip];
        $names = ['org' => $this->org, 'user' => $this->user, 'token' => $this->token];
        return Question::of([
            'ip' => $this->ip,
            'method' => $this->method,
            'path' => $this->path,
            'layers' => $this->layers === 'all' ? null : $this->layers,
            'class' => $this->class,
            'user_agent' => Question::headerText($this->userAgent),
            ...$names,
            'scopes' => $this->scopes,
            'client' => $client === null ? null : Question::present(['id' => $client->id, 'type' => $client->type]),
            'api_key' => $this->apiKey,
            'cost' => $this->cost,
            'receipt' => $this->receipt,
            'correlation_id' => $this->correlationId,
        ], $this->requestId, [...$address, ...($this->layers === 'edge' ? [] : $names)]);
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['method' => $this->method, 'layers' => $this->layers, 'class' => $this->class];
    }
}
