"""Every URL of the product."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

handler400 = "conversations.web.errors.bad_request"
handler500 = "conversations.web.errors.failed"

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("api/v1/", include("conversations.api.urls")),
    path("", include("conversations.web.urls")),
]
