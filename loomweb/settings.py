"""Django's settings. Values that an operator can set come from ``env``."""

from importlib.util import find_spec
from pathlib import Path

import dj_database_url
from django.utils.csp import CSP
from whitenoise.compress import Compressor

from .env import BASE_DIR, Environment, SettingsError

LOOM = Environment()

SECRET_KEY = LOOM.secret_key
DEBUG = LOOM.debug
ALLOWED_HOSTS = LOOM.allowed_hosts
CSRF_TRUSTED_ORIGINS = LOOM.trusted_origins

FEATURES = [
    "conversations.features.interchange",
    "conversations.features.retention",
    "conversations.features.usage",
    "conversations.features.webhooks",
    "conversations.features.notices",
    "conversations.features.sharing",
    "conversations.features.model_apis",
    "conversations.features.discord",
    "conversations.features.terminal",
    "conversations.features.tour",
]
"""Each entry can be deleted together with its folder (see ``conversations.feature``)."""

INSTALLED_APPS = [
    "conversations.admin_site.ReadOnlyAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "axes",
    "conversations",
    *FEATURES,
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "conversations.web.compression.PageGZipMiddleware",
    "conversations.web.errors.StorageErrorMiddleware",
    "conversations.web.errors.refuse_odd_encodings",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "conversations.web.health.HostMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "conversations.accounts.languages.AccountLanguageMiddleware",
    "conversations.accounts.devices.DeviceMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "conversations.accounts.sign_in.SignedOutMiddleware",
    "conversations.web.errors.LoomErrorMiddleware",
    "axes.middleware.AxesMiddleware",
    "conversations.api.middleware.ApiMiddleware",
]

ROOT_URLCONF = "loomweb.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "builtins": [
                "django.templatetags.i18n",
                "django.templatetags.l10n",
                "conversations.rendering.template_tags",
            ],
            "libraries": {
                "features": "conversations.web.feature_tags",
                "row_words": "conversations.rendering.row_words",
            },
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "conversations.accounts.own_account.preferences",
                "conversations.web.frame.frame",
            ],
        },
    }
]

SQLITE_OPTIONS = {
    # Seconds to wait for another process's write, such as a migration.
    "timeout": 20,
    # In a deferred transaction, a write after a read fails at once, whatever the timeout.
    "transaction_mode": "IMMEDIATE",
    "init_command": (
        "PRAGMA journal_mode=WAL;"
        f"PRAGMA synchronous={LOOM.synchronous};"
        "PRAGMA cache_size=-32000;"
        "PRAGMA temp_store=MEMORY;"
        "PRAGMA recursive_triggers=ON;"
    ),
}

# The system's own timeouts are minutes, during which a lost host would hold up every request.
POSTGRESQL_OPTIONS = {
    "connect_timeout": 5,  # seconds
    "tcp_user_timeout": 20_000,  # milliseconds for which sent data may be unanswered
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


def _folder_of(package: str) -> Path:
    """Return the folder of an installed package without importing the package."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _database() -> dict[str, object]:
    if not LOOM.database_url:
        return {
            "ENGINE": "loomweb.sqlite3",
            "NAME": LOOM.data_dir / "loom.sqlite3",
            "OPTIONS": SQLITE_OPTIONS,
            "TEST": {"NAME": LOOM.data_dir / "test.sqlite3"},
        }
    try:
        config = dict(dj_database_url.parse(LOOM.database_url))
    except (ValueError, KeyError) as error:
        raise SettingsError("DATABASE_URL is not a database URL") from error
    if config.get("ENGINE") == "django.db.backends.sqlite3":
        if ":memory:" in str(config["NAME"]):
            raise SettingsError("DATABASE_URL must name a file: each thread has its own memory.")
        config |= {"ENGINE": "loomweb.sqlite3", "OPTIONS": SQLITE_OPTIONS}
    elif config.get("ENGINE") == "django.db.backends.postgresql":
        options = config.get("OPTIONS") or {}
        config["OPTIONS"] = POSTGRESQL_OPTIONS | (options if isinstance(options, dict) else {})
        # A connection is kept for the next request on its thread, which checks it first.
        config |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
    else:
        raise SettingsError("DATABASE_URL must name a SQLite or a PostgreSQL database")
    return config


DATABASES = {"default": _database()}

# A Redis server that neither responds nor refuses must not hold up requests.
REDIS_OPTIONS = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0}  # seconds

if LOOM.redis_url:  # otherwise the cache is Django's own, in memory
    CACHES = {
        "default": {
            "BACKEND": "loomweb.redis_cache.FallbackRedisCache",
            "LOCATION": LOOM.redis_url,
            "OPTIONS": REDIS_OPTIONS,
        }
    }
    # The layer is not named "default", because then each page's socket would subscribe to it and
    # would be refused while Redis is unavailable.
    CHANNEL_LAYERS = {
        "relay": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": LOOM.redis_url, **REDIS_OPTIONS}]},
        }
    }

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
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
LOGIN_URL = "sign_in"
LOGIN_REDIRECT_URL = "home"

AXES_FAILURE_LIMIT = LOOM.sign_in_attempts
AXES_COOLOFF_TIME = LOOM.sign_in_lock_minutes / 60
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
AXES_LOCKOUT_CALLABLE = "conversations.accounts.sign_in.locked_out"
AXES_HANDLER = "conversations.accounts.sign_in.AttemptCounter"
AXES_CLIENT_IP_CALLABLE = "conversations.web.addresses.counted_address"
AXES_USERNAME_CALLABLE = "conversations.accounts.sign_in.tried_name"
AXES_ENABLE_ACCESS_FAILURE_LOG = True

MAILERS = {
    "default": {"BACKEND": "django.core.mail.backends.smtp.EmailBackend", "OPTIONS": LOOM.mailer}
    if LOOM.mailer
    else {"BACKEND": "django.core.mail.backends.dummy.EmailBackend"}
}
DEFAULT_FROM_EMAIL = LOOM.email_from

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
# The API's reference uses files of django-ninja. An entry in INSTALLED_APPS would import it at each
# start.
STATICFILES_DIRS = [BASE_DIR / "static", _folder_of("ninja") / "static"]
STATIC_ROOT = LOOM.data_dir / "static"
# Source maps of scripts are not compressed, because only developers read them.
WHITENOISE_SKIP_COMPRESS_EXTENSIONS = (*Compressor.SKIP_COMPRESS_EXTENSIONS, "map")
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "loomweb.static_files.LoomStaticStorage"},
}

SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "frame-src": [CSP.SELF],  # frames show diagrams of this site and must not load other sites
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
    "object-src": [CSP.NONE],
    "manifest-src": [CSP.SELF],
}
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_ENGINE = "conversations.accounts.devices"
SESSION_COOKIE_AGE = 60 * 60 * 24 * 60
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "loom_session"
CSRF_COOKIE_NAME = "loom_csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "conversations.web.errors.csrf_failed"
if LOOM.behind_tls_proxy:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True

DATA_UPLOAD_MAX_MEMORY_SIZE = LOOM.max_frame_bytes
DATA_UPLOAD_MAX_NUMBER_FILES = 1_000  # Django's 100 are too few for a dropped folder

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"()": "loomweb.logs.TextFormatter"},
        "json": {"()": "loomweb.logs.JsonFormatter"},
    },
    "handlers": {
        "stderr": {
            "class": "loomweb.logs.RateLimitedHandler",
            "formatter": LOOM.log_format,
            "lines_per_minute": LOOM.log_lines,
        }
    },
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "conversations": {"level": LOOM.log_level},
        "daphne": {"level": "WARNING"},
        "django.server": {"level": "WARNING", "handlers": [], "propagate": True},
        "uvicorn": {"level": "WARNING"},
    },
}

# Sign-in with an OpenID Connect provider or two factors. If neither is used, django-allauth is not
# imported and not needed, and none of its URLs exist.
if LOOM.uses_allauth:
    SSO = "conversations.accounts.sso"
    INSTALLED_APPS += ["allauth", "allauth.account"]
    if LOOM.oidc_issuer:
        INSTALLED_APPS.append("allauth.socialaccount")
    if LOOM.two_factor != "off":
        INSTALLED_APPS.append("allauth.mfa")
    INSTALLED_APPS.append(SSO)
    MIDDLEWARE.append("allauth.account.middleware.AccountMiddleware")
    if LOOM.two_factor == "required":
        AUTHENTICATION_BACKENDS[-1] = f"{SSO}.backends.SecondFactorBackend"
    ACCOUNT_ADAPTER = f"{SSO}.accounts.AccountAdapter"
    ACCOUNT_EMAIL_VERIFICATION = "none"
    ACCOUNT_PREVENT_ENUMERATION = False
    ACCOUNT_SIGNUP_FIELDS = ["username*", "email"]
    ACCOUNT_RATE_LIMITS = {
        # After the password, codes have the same limit of attempts as passwords.
        "login_failed": f"{LOOM.sign_in_attempts}/{LOOM.sign_in_lock_minutes * 60}s/key",
        "reauthenticate": "10/m/user",
    }
    SOCIALACCOUNT_ADAPTER = f"{SSO}.provider_accounts.SocialAccountAdapter"
    SOCIALACCOUNT_REAUTHENTICATION_REQUIRED = True
    MFA_ADAPTER = f"{SSO}.two_factor.TwoFactorAdapter"
    MFA_ALLOW_UNVERIFIED_EMAIL = True
    MFA_FORMS = {
        "authenticate": f"{SSO}.two_factor.CodeForm",
        "reauthenticate": f"{SSO}.two_factor.CodeAgainForm",
    }
    MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
    MFA_TOTP_ISSUER = "Loom Web"
    # A code may be typed when its 30 seconds are nearly over (RFC 6238, 5.2: one step at most).
    MFA_TOTP_TOLERANCE = 1
