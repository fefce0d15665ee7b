"""Every URL of the product."""

from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

handler500 = "conversations.web.errors.failed"

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("conversations.api.urls")),
    path("", include("conversations.web.urls")),
]

handler400 = "loomweb.errors.bad_request"

if settings.LOOM.two_factor != "off":
    from conversations.web.sso.admin_site import admin_sign_in

    urlpatterns.insert(0, path("admin/login/", admin_sign_in))
