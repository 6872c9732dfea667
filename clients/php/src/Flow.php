<?php

declare(strict_types=1);

namespace Palisade\Client;

/** What an attempt proves. */
enum Flow: string
{
    /** A password. */
    case Login = 'login';
    /** A one-time code. */
    case Otp = 'otp';
}
