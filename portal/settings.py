"""Settings of the portal, all from the environment (table in portal/README.md).

Invariant: with nothing set, the portal is safe to show on this machine: DEBUG off, a secret key of its own, sign-in
required by default for every page, a strict content security policy.
"""

import os
import secrets
from pathlib import Path

import environ
from csp.constants import NONCE, NONE, SELF
from pythonjsonlogger.core import RESERVED_ATTRS

from engine.spec.sealing import split_keys

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
MARLAAS_VAR = Path(env.str("MARLAAS_VAR", default="") or BASE_DIR / "var").resolve()
"""Everything the portal and the engine keep on disk."""
MARLAAS_VAR.mkdir(parents=True, exist_ok=True)


def read_or_create_secret_key(path: Path) -> str:
    """Return the key in ``path``; make one (mode 600) where there is none, safely with several processes starting."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    if not path.exists():
        aside.touch(mode=0o600)
        aside.write_text(secrets.token_urlsafe(50))
        try:
            os.link(aside, path)  # fails where another process was faster
        except FileExistsError:
            pass
        finally:
            aside.unlink()
    return path.read_text().strip()


SECRET_KEY = env.str("SECRET_KEY", default="") or read_or_create_secret_key(MARLAAS_VAR / "secret_key")
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])
"""Earlier secret keys: what they signed and sealed is still accepted."""
FIELD_KEYS = split_keys(env.str("MARLAAS_FIELD_KEYS", default=""))
"""Secrets of at least 32 characters that keys for secrets at rest are derived from; the first one seals, all open, and
``SECRET_KEY`` after them. The engine needs the same ones (``engine.spec.sealing``)."""
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "axes",
    "channels",
    "csp",
    "django_htmx",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "rest_framework",
    "portal.pages",
    "portal.tenants",
    "portal.audit",
    "portal.base_models",
    "portal.datasets",
    "portal.rewards",
    "portal.jobs",
    "portal.environments",
    "portal.adapters",
    "portal.progress",
    "portal.rollouts",
    "portal.usage",
    "portal.webhooks",
    "portal.engine_room",
    "portal.live",
    "portal.api",
    "portal.ops",
]

MIDDLEWARE = [
    "portal.audit.middleware.RequestIdMiddleware",
    "portal.engine_room.middleware.RequestMetricsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "portal.tenants.middleware.TokenInAddressMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "portal.tenants.middleware.TenantMiddleware",
    "portal.pages.http.PageMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "portal.pages.context.frame",
            ]
        },
    }
]

# --- database --------------------------------------------------------------------------------------------------------

DATABASES = {"default": env.db("DATABASE_URL", default=f"sqlite:///{MARLAAS_VAR / 'portal.sqlite3'}")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # Several processes write: without these, most concurrent writes fail with "database is locked".
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    }
DATABASES["default"]["CONN_MAX_AGE"] = 0  # a waiting WebSocket must hold no connection
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- broker, channel layer, cache ------------------------------------------------------------------------------------


def kombu_url(redis_url: str) -> str:
    """Translate redis-py's ``unix:///PATH?db=N`` into kombu's ``redis+socket:///PATH?virtual_host=N``."""
    if not redis_url.startswith("unix://"):
        return redis_url
    path, _, query = redis_url.removeprefix("unix://").partition("?")
    database = next((value for value in query.split("&") if value.startswith("db=")), "db=0").removeprefix("db=")
    return f"redis+socket://{path}?virtual_host={database}"


REDIS_URL = env.str("REDIS_URL", default="")
"""redis-py form: ``redis://host:6379/0`` or ``unix:///PATH?db=0``. ``manage.py up`` sets it for what it starts."""
CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default="") or kombu_url(REDIS_URL) or "memory://"

if REDIS_URL:
    CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.core.RedisChannelLayer",
            # Waiting for news blocks for 5 s; redis-py's own limit for an answer, also 5 s, would cut idle sockets off.
            "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}]},
        }
    }
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL}}
else:  # one process alone: management commands and tests
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# --- sign-in ---------------------------------------------------------------------------------------------------------

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "portal.tenants.sign_in.InvitationOnlyAdapter"
ACCOUNT_FORMS = {
    "login": "portal.tenants.sign_in.SignInForm",
    "add_email": "portal.tenants.sign_in.NewAddressForm",
    "reauthenticate": "portal.tenants.sign_in.ConfirmForm",
    "change_password": "portal.tenants.sign_in.NewPasswordForm",
    "reset_password": "portal.tenants.sign_in.ForgottenPasswordForm",
    "reset_password_from_key": "portal.tenants.sign_in.PasswordByLinkForm",
}
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_REAUTHENTICATION_METHODS = ["password", "mfa"]  # no code by mail: not every installation has mail
ACCOUNT_CHANGE_EMAIL = True  # one address; a new one counts once it is confirmed
ACCOUNT_LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_RATE_LIMITS = {"login_failed": False}  # django-axes counts failed sign-ins, in the database
MFA_FORMS = {
    "authenticate": "portal.tenants.sign_in.SecondFactorForm",
    "reauthenticate": "portal.tenants.sign_in.ConfirmCodeForm",
    "activate_totp": "portal.tenants.sign_in.SetUpAppForm",
}
# Nobody signs up by themselves, and a new address counts once it is confirmed: with a second factor it may be changed
# too, and a change that waits for its link keeps nobody from setting one up.
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_ADAPTER = "portal.sealing.SealingMFAAdapter"
MFA_TOTP_ISSUER = "MARLaaS"
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_USERNAME_FORM_FIELD = "login"
AXES_LOCKOUT_CALLABLE = "portal.tenants.sign_in.answer_lock_out"
AXES_VERBOSE = False
EMAIL_CONFIG = env.email("EMAIL_URL", default="consolemail://")
vars().update(EMAIL_CONFIG)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="marlaas@localhost")
PUBLIC_URL = env.str("PUBLIC_URL", default="http://localhost:8000")
"""Where people reach the portal: the beginning of links in webhooks and mails."""
WEBHOOKS_ALLOW_PRIVATE = env.bool("WEBHOOKS_ALLOW_PRIVATE", default=False)
"""Send webhooks to private and local addresses too: only where every tenant may reach the operator's network."""
WEBHOOKS_DISABLE_AFTER_DAYS = env.int("WEBHOOKS_DISABLE_AFTER_DAYS", default=3)

# --- what leaves by HTTP ---------------------------------------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "connect-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
HTTPS = env.bool("HTTPS", default=False)
"""Set it where a proxy in front speaks TLS and sends X-Forwarded-Proto."""
SECURE_SSL_REDIRECT = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

STATIC_URL = "static/"
STATIC_ROOT = MARLAAS_VAR / "static"
STATIC_ROOT.mkdir(exist_ok=True)
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "portal.pages.storage.ModuleStaticFilesStorage"},
}
FILE_UPLOAD_TEMP_DIR = MARLAAS_VAR / "tmp"
FILE_UPLOAD_TEMP_DIR.mkdir(exist_ok=True)
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024  # of a form without its files; datasets are streamed

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["portal.api.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["portal.api.permissions.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.api.parsers.LimitedJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "portal.api.pagination.Pages",
    "DEFAULT_SCHEMA_CLASS": "portal.api.schema.ScopedSchema",
    "DEFAULT_THROTTLE_CLASSES": [
        "portal.api.throttling.ReadThrottle",
        "portal.api.throttling.WriteThrottle",
        "portal.api.throttling.TenantThrottle",
    ],
    "DEFAULT_THROTTLE_RATES": {
        "read": env.str("API_READ_RATE", default="1200/min"),
        "write": env.str("API_WRITE_RATE", default="120/min"),
    },
    "EXCEPTION_HANDLER": "portal.api.errors.handle_exception",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "MARLaaS",
    "DESCRIPTION": "Fine-tune LoRA adapters with reinforcement learning on a shared base model.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "RewardTrialState": "portal.rewards.models.TrialState",
        "DeliveryState": "portal.webhooks.models.State",
        "RepeatsEnum": "portal.api.dataset_serializers.REPEATS",  # two fields have these choices
    },
}

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
MAX_STREAMS_PER_TOKEN = env.int("MAX_STREAMS_PER_TOKEN", default=20)
MAX_STREAMS_PER_USER = env.int("MAX_STREAMS_PER_USER", default=50)
MAX_STREAMS_PER_TENANT = env.int("MAX_STREAMS_PER_TENANT", default=200)
"""Event streams and WebSockets open at once."""
API_STREAM_SECONDS = env.int("API_STREAM_SECONDS", default=3600)
DOWNLOAD_LINK_SECONDS = env.int("DOWNLOAD_LINK_SECONDS", default=15 * 60)

# --- logs and metrics ------------------------------------------------------------------------------------------------

METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
"""What Prometheus sends as ``Authorization: Bearer ...`` to read /metrics; empty: nobody reads it by token."""
METRICS_NETWORKS = env.list("METRICS_NETWORKS", default=[])
"""Networks whose addresses read /metrics without a token, e.g. ``10.0.0.0/8``; see the README for proxies."""

LOG_FORMAT = env.str("LOG_FORMAT", default="text")
"""``text`` or ``json``: one object a line."""
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"origin": {"()": "portal.audit.context.OriginFilter"}},
    "formatters": {
        "text": {"format": "%(asctime)s %(levelname)s %(name)s [%(request_id)s %(tenant_id)s %(job_id)s]: %(message)s"},
        "json": {
            "()": "pythonjsonlogger.json.JsonFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s %(request_id)s %(tenant_id)s %(job_id)s",
            "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
            # Left out: addresses that are permissions, what Celery's messages hold, a second copy with colours.
            "reserved_attrs": [*RESERVED_ATTRS, "request", "data", "color_message"],
        },
    },
    "handlers": {
        "stdout": {
            "class": "logging.StreamHandler",
            "stream": "ext://sys.stdout",
            "formatter": "json" if LOG_FORMAT == "json" else "text",
            "filters": ["origin"],
        }
    },
    "loggers": {
        "axes": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},  # it would log tenants' addresses
        # Several tasks a second, of no news; failures are logged.
        "celery.app.trace": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        # The web server's own lines in our form; of requests portal.requests tells, with their ids.
        "uvicorn": {"handlers": [], "propagate": True},
        "uvicorn.error": {"handlers": [], "propagate": True},
        "uvicorn.access": {"handlers": [], "propagate": True, "level": "WARNING"},
    },
    "root": {"handlers": ["stdout"], "level": env.str("LOG_LEVEL", default="INFO")},
}
