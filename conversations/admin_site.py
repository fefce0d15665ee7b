"""The site of the Django admin: it reads, and nothing below ``/admin/`` writes.

Rights, accounts, groups and all else change through the functions of ``archive``, which
enter what they do in the audit log. Two things hold this for every table, whichever app
it belongs to: only classes made of ``ReadOnlyAdmin`` are registered, and no view of the
site is reached by anything but GET and HEAD, signing out excepted.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_safe

if TYPE_CHECKING:
    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyAdmin = admin.ModelAdmin


class ReadOnlyAdminConfig(AdminConfig):
    default_site = "conversations.admin_site.ReadOnlyAdminSite"


class ReadOnlyAdmin(AnyAdmin):
    """A table that is looked at; no permission changes it."""

    actions = None

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


class ReadOnlyAdminSite(admin.AdminSite):
    site_header = site_title = "Loom Web"

    def register(
        self,
        model_or_iterable: type[Model] | Iterable[type[Model]],
        admin_class: type[AnyAdmin] | None = None,
        **options: Any,
    ) -> None:
        """Django and other apps register their tables when they are loaded, with forms,
        actions and views that write. Those are not taken; ``conversations.admin`` lists
        their tables beside ours."""
        if admin_class is not None and issubclass(admin_class, ReadOnlyAdmin):
            super().register(model_or_iterable, admin_class, **options)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Every view of the site and of what is registered comes through here."""
        answered = view if view == self.logout else require_safe(view)
        return super().admin_view(answered, cacheable)

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The product's own page, which asks for a second factor where one is wanted. Who is
        signed in already and may not enter is told so, instead of being sent in a circle."""
        # Django imports this module before it knows the models that this one needs.
        from django.contrib.auth.views import redirect_to_login

        wanted = request.GET.get("next", "")
        is_ours = url_has_allowed_host_and_scheme(wanted, allowed_hosts=None)
        to = wanted if is_ours else reverse("admin:index")
        if self.has_permission(request):
            return redirect(to)
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(to)

    def logout(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The product's own, at which browsers forget what they hold. A POST stays one."""
        return redirect("sign_out", preserve_request=True)

    def password_change(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The product's own page, which signs the person's other browsers out."""
        return redirect("password_change")

    def password_change_done(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return redirect("password_change_done")
