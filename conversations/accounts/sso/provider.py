"""Where allauth looks for an app's providers."""

from django.apps import apps

provider_classes = []
if apps.is_installed("allauth.socialaccount"):
    from .oidc import OidcProvider

    provider_classes.append(OidcProvider)
