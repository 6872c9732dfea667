<?php
// Reads a request as PHP applications do: PHP's own parsers fill $_GET, $_POST and $_REQUEST.
// Answers every text that an application could take for the name; `X-Path` says where it is.

function leaves($value): array
{
    if (is_string($value)) {
        return [$value];
    }
    if (is_int($value)) {
        return [(string) $value];
    }
    return is_array($value) ? array_merge([], ...array_map('leaves', array_values($value))) : [];
}

function member($value, array $path): array
{
    foreach ($path as $name) {
        $value = is_array($value) ? ($value[$name] ?? null) : null;
    }
    return leaves($value);
}

$path = json_decode($_SERVER['HTTP_X_PATH']);
$found = array_merge(member($_GET, $path), member($_POST, $path), member($_REQUEST, $path));
if (($_SERVER['CONTENT_TYPE'] ?? '') === 'application/json') {
    $found = array_merge($found, member(json_decode(file_get_contents('php://input'), true), $path));
}
$answer = json_encode($found, JSON_INVALID_UTF8_SUBSTITUTE);
header('Content-Length: ' . strlen($answer));
echo $answer;
