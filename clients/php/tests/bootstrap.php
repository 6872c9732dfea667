<?php

declare(strict_types=1);

// Debian's packages: php-nyholm-psr7 with what it needs, php-illuminate-http, -routing, -events.
foreach (['Nyholm/Psr7', 'Illuminate/Events', 'Illuminate/Routing'] as $package) {
    $file = stream_resolve_include_path("$package/autoload.php")
        ?: exit("Debian: apt-get install php-nyholm-psr7 php-illuminate-http php-illuminate-routing php-illuminate-events\n");
    require_once $file;
}

spl_autoload_register(static function (string $class): void {
    $folders = [
        'Palisade\\Client\\Tests\\' => __DIR__,
        'Palisade\\Client\\' => dirname(__DIR__) . '/src',
        // Debian has no package of the two interfaces.
        'Psr\\Http\\Server\\' => __DIR__ . '/support/Psr/Http/Server',
    ];
    foreach ($folders as $prefix => $folder) {
        $file = $folder . '/' . strtr(substr($class, strlen($prefix)), '\\', '/') . '.php';
        if (str_starts_with($class, $prefix) && is_file($file)) {
            require_once $file;
            return;
        }
    }
});
