<?php

declare(strict_types=1);

namespace Palisade\Client;

/** A background job about to be queued (T-JOBS): quotas of its organisation and token. */
final class JobFacts implements CheckFacts
{
    public readonly string $requestId;

    public function __construct(
        #[\SensitiveParameter] public readonly string $org,
        #[\SensitiveParameter] public readonly ?string $token = null,
        #[\SensitiveParameter] public readonly ?string $user = null,
        public readonly ?string $class = null,
        public readonly ?int $cost = null,
        ?string $requestId = null,
        public readonly ?string $correlationId = null,
    ) {
        $this->requestId = $requestId ?? Question::newId();
    }

    /** @internal */
    public function question(): Question
    {
        return Question::of([
            'op' => 'job.enqueue',
            'org' => $this->org,
            'token' => $this->token,
            'user' => $this->user,
            'class' => $this->class,
            'cost' => $this->cost,
            'correlation_id' => $this->correlationId,
        ], $this->requestId, ['org' => $this->org, 'token' => $this->token]);
    }

    /** @return array<string, mixed> */
    public function __debugInfo(): array
    {
        return ['class' => $this->class, 'cost' => $this->cost];
    }
}
