<?php

declare(strict_types=1);

namespace Palisade\Client;

/**
 * Addresses of the server's name, with a bound on the wait. PHP's own look-up cannot be
 * interrupted: it would hold the process as long as the system's resolver likes.
 *
 * It reads /etc/hosts and asks the name servers of /etc/resolv.conf. Where there are none, PHP's
 * look-up is used.
 *
 * @internal
 */
class Resolver
{
    private const SERVERS_MAX = 3;
    private const TRIES = 2;
    private const TYPES = [1 => 4, 28 => 16];

    public function __construct(
        private readonly string $hosts = '/etc/hosts',
        private readonly string $configuration = '/etc/resolv.conf',
        private readonly int $port = 53,
    ) {
    }

    /** @return list<string> */
    public function addresses(string $host, Deadline $deadline): array
    {
        if (filter_var($host, FILTER_VALIDATE_IP) !== false) {
            return [$host];
        }
        $known = $this->fromHosts(strtolower(rtrim($host, '.')));
        if ($known !== []) {
            return $known;
        }
        [$servers, $search, $dots] = $this->settings();
        if ($servers === []) {
            return gethostbynamel($host) ?: throw new Unavailable('its name is not known');
        }
        foreach (self::candidates($host, $search, $dots) as $name) {
            $found = $this->lookUp($name, $servers, $deadline);
            if ($found !== []) {
                return $found;
            }
        }
        throw new Unavailable('its name is not known');
    }

    /** @return list<string> */
    private function fromHosts(string $host): array
    {
        $found = [];
        foreach (@file($this->hosts) ?: [] as $line) {
            $words = preg_split('/\s+/', trim(explode('#', $line)[0])) ?: [];
            if (in_array($host, array_map('strtolower', array_slice($words, 1)), true)) {
                $found[] = $words[0];
            }
        }
        return array_values(array_filter($found, static fn (string $ip): bool => filter_var($ip, FILTER_VALIDATE_IP) !== false));
    }

    /** @return array{list<string>, list<string>, int} name servers, search list, dots of a whole name */
    private function settings(): array
    {
        [$servers, $search, $dots] = [[], [], 1];
        foreach (@file($this->configuration) ?: [] as $line) {
            $words = preg_split('/\s+/', trim($line)) ?: [];
            $rest = array_slice($words, 1);
            if ($words[0] === 'nameserver' && filter_var($rest[0] ?? '', FILTER_VALIDATE_IP) !== false) {
                $servers[] = $rest[0];
            } elseif ($words[0] === 'search' || $words[0] === 'domain') {
                $search = array_slice($rest, 0, 6);
            } elseif ($words[0] === 'options' && preg_match('/\bndots:(\d+)/', $line, $given) === 1) {
                $dots = (int) $given[1];
            }
        }
        return [array_slice($servers, 0, self::SERVERS_MAX), $search, $dots];
    }

    /**
     * @param list<string> $search
     * @return list<string>
     */
    private static function candidates(string $host, array $search, int $dots): array
    {
        if (str_ends_with($host, '.')) {
            return [rtrim($host, '.')];
        }
        $longer = array_map(static fn (string $domain): string => $host . '.' . trim($domain, '.'), $search);
        return substr_count($host, '.') >= $dots ? [$host, ...$longer] : [...$longer, $host];
    }

    /**
     * Asks all name servers at once, and again if nobody answers; the first answer counts.
     *
     * @param list<string> $servers
     * @return list<string>
     */
    private function lookUp(string $name, array $servers, Deadline $deadline): array
    {
        for ($try = self::TRIES; $try > 0; $try--) {
            $sockets = array_values(array_filter(array_map($this->socket(...), $servers)));
            $asked = [];
            foreach (array_keys(self::TYPES) as $type) {
                // Ports of the system and ids of our own: an answer from elsewhere must guess both.
                $id = random_bytes(2);
                $asked[$type] = $id . self::question($name, $type);
                foreach ($sockets as $socket) {
                    @fwrite($socket, $asked[$type]);
                }
            }
            $found = $this->heard($sockets, $asked, $deadline, $try);
            array_map('fclose', $sockets);
            if ($found !== null) {
                return $found;
            }
        }
        return [];
    }

    /** @return resource|false */
    private function socket(string $server)
    {
        $host = str_contains($server, ':') ? "[$server]" : $server;
        $socket = @stream_socket_client("udp://{$host}:{$this->port}", $code, $message, 1);
        if ($socket !== false) {
            stream_set_blocking($socket, false);
        }
        return $socket;
    }

    /**
     * @param list<resource> $sockets
     * @param array<int, string> $asked
     * @return list<string>|null `null` if nobody answered in the time of this try
     */
    private function heard(array $sockets, array $asked, Deadline $deadline, int $tries): ?array
    {
        $deadline->left();
        $share = $deadline->share($tries);
        $answers = [];
        try {
            while ($sockets !== [] && count($answers) < count($asked)) {
                foreach ($share->await($sockets) as $socket) {
                    $answer = (string) @fread($socket, 4096);
                    foreach ($asked as $type => $question) {
                        if (self::answers($answer, $question)) {
                            $answers[$type] ??= self::read($answer, $type, strlen($question));
                        }
                    }
                }
            }
        } catch (Unavailable) {
            // One of the two may be all that there is.
            $deadline->left();
        }
        return $answers === [] ? null : array_merge(...array_values($answers));
    }

    private static function question(string $name, int $type): string
    {
        $labels = '';
        foreach (explode('.', $name) as $label) {
            if ($label === '' || strlen($label) > 63) {
                throw new Unavailable('its name is not a host name');
            }
            $labels .= chr(strlen($label)) . $label;
        }
        // Recursion is desired, and one question asked.
        return pack('n5', 0x0100, 1, 0, 0, 0) . $labels . "\0" . pack('n2', $type, 1);
    }

    /** True if it is a complete answer to this very question. */
    private static function answers(string $answer, string $question): bool
    {
        if (strlen($answer) < strlen($question) || substr($answer, 0, 2) !== substr($question, 0, 2)) {
            return false;
        }
        $flags = unpack('n', $answer, 2)[1];
        // A refusal of this name server says nothing about the name (only 0 and 3 do).
        return ($flags & 0x8000) !== 0 && in_array($flags & 0xf, [0, 3], true)
            && strcasecmp(substr($answer, 12, strlen($question) - 12), substr($question, 12)) === 0;
    }

    /** @return list<string> */
    private static function read(string $answer, int $type, int $at): array
    {
        $found = [];
        for ($left = unpack('n', $answer, 6)[1]; $left > 0; $left--) {
            $at = self::afterName($answer, $at);
            if ($at + 10 > strlen($answer)) {
                break;
            }
            ['type' => $kind, 'size' => $size] = unpack('ntype/nclass/Nttl/nsize', $answer, $at);
            $data = substr($answer, $at + 10, $size);
            if ($kind === $type && strlen($data) === self::TYPES[$type]) {
                $found[] = (string) inet_ntop($data);
            }
            $at += 10 + $size;
        }
        return $found;
    }

    private static function afterName(string $answer, int $at): int
    {
        while ($at < strlen($answer)) {
            $length = ord($answer[$at]);
            if ($length >= 0xc0) {
                return $at + 2;
            }
            $at += 1 + $length;
            if ($length === 0) {
                return $at;
            }
        }
        return $at;
    }
}
