"""The list of providers, in the module where allauth looks for it."""

from django.apps import apps

provider_classes = []
if apps.is_installed("allauth.socialaccount"):
    from .oidc import OidcProvider

    provider_classes.append(OidcProvider)
