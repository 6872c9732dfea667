<?php

// An application that asks once, for each request: who decided, and the server's connection.

declare(strict_types=1);

require __DIR__ . '/bootstrap.php';

use Palisade\Client\{Attempt, AttemptFacts, OnUnavailable, Palisade, RequestFacts, Reservation};

$palisade = new Palisade((string) getenv('PALISADE'), deadline: 30, log: static fn () => null);
$user = $_GET['user'] ?? null;
if (isset($_GET['dies'])) {
    pcntl_async_signals(true);
    pcntl_signal(SIGALRM, static fn () => exit('died'));
    pcntl_alarm(1);
}
if (isset($_GET['exits'])) {
    $facts = new AttemptFacts(ip: '203.0.113.5', account: 'ann', username: 'ann');
    $palisade->guard(OnUnavailable::Closed)->login($facts, static function (Attempt $attempt): void {
        exit('exited');
    });
}
if (isset($_GET['spends'])) {
    $facts = new RequestFacts(ip: '203.0.113.5', method: 'POST', path: '/v1/chat', org: 'acme');
    $palisade->reserve($facts, OnUnavailable::Closed, static function (Reservation $reservation): void {
        $reservation->used(['tokens' => 812]);
        exit('spent');
    }, costs: ['tokens' => 4000]);
}
$answer = $palisade->check(new RequestFacts(ip: '203.0.113.7', method: 'GET', path: '/', user: $user), OnUnavailable::Closed);
echo "$answer->decidedBy $answer->rule";
