"""Django's own login view, with its CSRF protection and sessions in signed cookies."""

import os

from django.conf import settings

settings.configure(
    SECRET_KEY=os.urandom(16).hex(),
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
    MIDDLEWARE=[
        "django.middleware.common.CommonMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "users.sqlite3"}},
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "loaders": [
                    (
                        "django.template.loaders.locmem.Loader",
                        {
                            "registration/login.html": "<form method=post>{% csrf_token %}{{ form }}</form>"
                        },
                    )
                ]
            },
        }
    ],
    LOGIN_REDIRECT_URL="/home",
)

import django  # noqa: E402

django.setup()

from django.contrib.auth import get_user_model  # noqa: E402
from django.contrib.auth.signals import user_login_failed  # noqa: E402
from django.contrib.auth.views import LoginView  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.servers import basehttp  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

failed = 0


def count(**_):
    global failed
    failed += 1


user_login_failed.connect(count)
urlpatterns = [
    path("login/", LoginView.as_view()),
    path("home", lambda request: HttpResponse(f"welcome {request.user}")),
    path("verified", lambda _: HttpResponse(str(failed))),
]

call_command("migrate", verbosity=0)
get_user_model().objects.create_user("ann", password="right")
# As its `runserver` does it.
basehttp.run(
    "127.0.0.1",
    0,
    get_wsgi_application(),
    threading=True,
    on_bind=lambda port: print(port, flush=True),
)
