"""The pages for creating, listing, revoking and opening links to one file of a workspace."""

from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_http_methods, require_safe

from conversations.access import (
    access_context_of,
    get_folder_for,
    get_workspace_for,
    post_by_person,
)
from conversations.agent.undo.disk import real_path
from conversations.archive.blobs import read_blob
from conversations.archive.rights import MANAGE, WRITE
from conversations.domain.errors import NotFound, Rejected
from conversations.domain.text import storable
from conversations.rendering.messages import translate
from conversations.rendering.source_text import size_text
from conversations.web.files import (
    FileAddress,
    OpenedFile,
    describe_file,
    open_content,
    page_number,
    read_address,
    read_whole,
    serve_file,
    show_preview,
)

from . import service
from .models import FileLink
from .views import unlisted


class FileShareForm(forms.Form):
    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        longest = settings.LOOM.share_days
        self.fields["days"] = forms.IntegerField(
            label=gettext("Expires after (days)"),
            initial=longest,
            min_value=1,
            max_value=longest,
        )


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def file_share(request: HttpRequest, slug: str) -> HttpResponse:
    """Show and create links to the file of the address, as it is now or in the given version."""
    workspace, _ = get_folder_for(request, slug, to=WRITE)
    address = read_address(request, workspace)
    if request.method != "POST" and not settings.LOOM.share_links:
        off = {"name": address.name, "who": gettext("this file")}
        return render(request, "sharing/off.html", off)
    service.require_sharing()
    data, unreadable = b"", ""
    try:
        data = read_whole(address)
    except (NotFound, Rejected) as error:
        if request.method == "POST":
            raise
        # Links to a file continue to work if it is gone, and this page is where they are revoked.
        unreadable = translate(error.message)
    form = FileShareForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            origin = access_context_of(request).origin
            service.create_file_link(
                workspace, address.path, data, **form.cleaned_data, origin=origin
            )
        except Rejected as error:
            form.add_error(None, translate(error.message))
        else:
            messages.success(
                request, gettext("Link created. Anyone with the link can see the file.")
            )
            return redirect(address.url("file_share"))
    context = {
        "name": address.name,
        "file_url": address.url(),
        "form": None if unreadable else form,
        "unreadable": unreadable,
        "size": size_text(len(data)),
        "links": [
            {
                "link": link,
                "address": request.build_absolute_uri(
                    reverse("shared_one", args=[service.share_token(link)])
                ),
                "revoke_url": reverse("file_share_revoke", args=[slug, link.uuid]),
            }
            for link in service.open_file_links(workspace, address.path)
        ],
    }
    return render(request, "sharing/file_share.html", context, status=400 if form.errors else 200)


@login_required
@require_safe
def shared_files(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the files of the workspace that have links. Links also work if the file is gone."""
    workspace = get_workspace_for(request, slug, to=MANAGE)[0]
    service.require_sharing()
    files = [
        {
            "name": storable(real_path(path)),
            "count": count,
            "url": reverse("file_share", args=[slug], query={"path": path}),
        }
        for path, count in service.count_file_links(workspace)
    ]
    return render(request, "sharing/shared_files.html", {"workspace": workspace, "files": files})


@post_by_person
def file_share_revoke(request: HttpRequest, slug: str, file_link: UUID) -> HttpResponse:
    workspace, _ = get_folder_for(request, slug, to=WRITE)
    ended = service.revoke_file_link(workspace, file_link, origin=access_context_of(request).origin)
    messages.success(request, gettext("Link revoked."))
    address = FileAddress(workspace, real_path(ended.path))
    return redirect(address.url("file_share" if settings.LOOM.share_links else "workspace_files"))


def _open_shared(token: str) -> tuple[FileLink, str, OpenedFile]:
    """Return the link, the file's name and the file. Raise NotFound if the link is invalid."""
    link = service.get_shared_file(token)
    name = storable(real_path(link.path).rpartition("/")[2])
    return link, name, open_content(name, read_blob(link.digest))


@require_safe
def shared_one(request: HttpRequest, token: str) -> HttpResponse:
    """Show the page of a shared file."""
    link, name, file = _open_shared(token)
    if request.method == "GET" and "page" not in request.GET:
        service.count_opening(link)
    preview_url = reverse(
        "shared_one_preview", args=[token], query={"page": str(page_number(request))}
    )
    context = {
        "link": link,
        "name": name,
        **describe_file(request, file),
        "preview_url": preview_url,
        "download_url": reverse("shared_one_download", args=[token]),
    }
    return unlisted(render(request, "sharing/shared_file.html", context))


@require_safe
@xframe_options_sameorigin
def shared_one_preview(request: HttpRequest, token: str) -> HttpResponse:
    _, name, file = _open_shared(token)
    return unlisted(show_preview(request, name, file, first_page=page_number(request)))


@require_safe
def shared_one_download(request: HttpRequest, token: str) -> HttpResponse:
    link, name, _ = _open_shared(token)
    return unlisted(serve_file(request, name, read_blob(link.digest)))
