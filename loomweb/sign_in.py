"""What Django needs for sign-in by an OpenID Connect provider and by two factors.

Only loaded where a setting asks for it: otherwise django-allauth is neither imported
nor needed, and none of its addresses exist.
"""

from typing import Any

from .env import Environment

APP = "conversations.accounts.sso"


def allauth_apps(loom: Environment) -> list[str]:
    apps = ["allauth", "allauth.account"]
    if loom.oidc_issuer:
        apps.append("allauth.socialaccount")
    if loom.two_factor != "off":
        apps.append("allauth.mfa")
    return [*apps, APP]


def allauth_settings(loom: Environment) -> dict[str, Any]:
    """Settings by name. Pages, people's names and the limits stay ours."""
    wait = f"{loom.sign_in_attempts}/{loom.sign_in_lock_minutes * 60}s"
    return {
        "ACCOUNT_ADAPTER": f"{APP}.accounts.AccountAdapter",
        "ACCOUNT_EMAIL_VERIFICATION": "none",
        "ACCOUNT_PREVENT_ENUMERATION": False,
        "ACCOUNT_SIGNUP_FIELDS": ["username*", "email"],
        # Who knows a password already may try as many codes as others may passwords.
        "ACCOUNT_RATE_LIMITS": {"login_failed": f"{wait}/key", "reauthenticate": "10/m/user"},
        "SOCIALACCOUNT_ADAPTER": f"{APP}.accounts.PeopleAdapter",
        "SOCIALACCOUNT_REAUTHENTICATION_REQUIRED": True,
        "MFA_ADAPTER": f"{APP}.two_factor.TwoFactorAdapter",
        "MFA_ALLOW_UNVERIFIED_EMAIL": True,
        "MFA_SUPPORTED_TYPES": ["totp", "recovery_codes"],
        "MFA_TOTP_ISSUER": "Loom Web",
    }
