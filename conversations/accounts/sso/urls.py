"""The URLs of the extra, as far as it is switched on.

allauth finds its pages by the names that begin with ``account_``, ``mfa_`` and
``socialaccount_``.
"""

from django.conf import settings
from django.urls import URLPattern, path
from django.views.generic import RedirectView

from . import sign_in_methods

CODES = "account/recovery-codes/"

to_ways = RedirectView.as_view(pattern_name="sign_in_ways")

urlpatterns: list[URLPattern] = [
    path("account/sign-in/", sign_in_methods.sign_in_ways, name="sign_in_ways"),
    path("account/confirm/", sign_in_methods.password_again, name="account_reauthenticate"),
    path("password/", sign_in_methods.ConfirmedPasswordView.as_view(), name="password_change"),
    path("account/log-in/", RedirectView.as_view(pattern_name="sign_in"), name="account_login"),
]

if settings.LOOM.oidc_issuer:
    from . import connecting

    urlpatterns += [
        path("sign-in/oidc/", connecting.oidc_sign_in, name="oidc_sign_in"),
        path("sign-in/oidc/callback/", connecting.oidc_callback, name="oidc_callback"),
        path("account/sign-in/connect/<str:token>/", connecting.oidc_connect, name="oidc_connect"),
        path("account/sign-in/disconnect/", connecting.oidc_disconnect, name="oidc_disconnect"),
        path("account/sign-in/accounts/", to_ways, name="socialaccount_connections"),
        path("sign-in/oidc/new/", connecting.too_late, name="socialaccount_signup"),
    ]

if settings.LOOM.two_factor != "off":
    from . import two_factor

    urlpatterns += [
        path("sign-in/code/", two_factor.ask_for_code, name="mfa_authenticate"),
        path("sign-in/set-up/", two_factor.two_factor_set_up, name="two_factor_set_up"),
        path("account/confirm/code/", two_factor.ask_again, name="mfa_reauthenticate"),
        path("account/two-factor/", to_ways, name="mfa_index"),
        path(
            "account/two-factor/set-up/",
            two_factor.TwoFactorSetUpView.as_view(),
            name="mfa_activate_totp",
        ),
        path(
            "account/two-factor/off/",
            two_factor.TwoFactorDisableView.as_view(),
            name="mfa_deactivate_totp",
        ),
        path(CODES, two_factor.TwoFactorCodesView.as_view(), name="mfa_view_recovery_codes"),
        path(f"{CODES}new/", two_factor.new_recovery_codes, name="mfa_generate_recovery_codes"),
        path(
            f"{CODES}recovery-codes.txt",
            two_factor.recovery_codes_file,
            name="mfa_download_recovery_codes",
        ),
    ]
