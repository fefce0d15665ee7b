"""The site of the Django admin, which is read-only: no view below ``/admin/`` writes.

Rights, accounts, groups and all other data are changed by the functions of ``archive``, which
record the changes in the audit log. Two measures make every table read-only, whichever app it
belongs to: only subclasses of ``ReadOnlyAdmin`` are registered, and every view except signing out
accepts only GET and HEAD.
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
    """A read-only table, which nobody can change, whatever permissions they have."""

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
        """Register a subclass of ``ReadOnlyAdmin``, and ignore all other classes.

        Django and other apps register classes with forms, actions and views that write.
        ``conversations.admin`` lists their tables as well.
        """
        if admin_class is not None and issubclass(admin_class, ReadOnlyAdmin):
            super().register(model_or_iterable, admin_class, **options)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Allow only GET and HEAD; Django wraps every view of the site with this method."""
        answered = view if view == self.logout else require_safe(view)
        return super().admin_view(answered, cacheable)

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Redirect to the product's sign-in page, which also asks for a second factor.

        A person who is signed in but may not use the admin gets PermissionDenied, because a
        redirect would lead back here.
        """
        # Django imports admin_site before the models that django.contrib.auth.views needs are
        # loaded.
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
        """Redirect to the product's own view, which clears the browser's data. Keep a POST."""
        return redirect("sign_out", preserve_request=True)

    def password_change(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Redirect to the product's own page, which signs the person's other browsers out."""
        return redirect("password_change")

    def password_change_done(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return redirect("password_change_done")
