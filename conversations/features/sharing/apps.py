from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext, gettext_noop

from conversations import feature


class SharingConfig(feature.Feature):
    name = "conversations.features.sharing"
    verbose_name = "Share links"

    def links(self, place: str, request: HttpRequest, **about: Any) -> Iterable[feature.Link]:
        if place == "session.menu" and about["can_write"]:
            address = reverse("session_share", args=[about["uuid"]])
            yield feature.Link(label=gettext("Share…"), url=address)
        if place == "workspace.file" and about["can_write"]:
            query = {name: about[name] for name in ("path", "version") if about[name]}
            address = reverse("file_share", args=[about["slug"]], query=query)
            yield feature.Link(label=gettext("Share…"), url=address)

        if place == "workspace.settings" and settings.LOOM.share_links:
            address = reverse("shared_files", args=[about["slug"]])
            yield feature.Link(label=gettext("Shared files"), url=address)

    def named_blobs(self) -> Iterable[str]:
        from .models import FileLink
        from .service import good_links

        return good_links(FileLink).values_list("digest", flat=True)

    def purged_tables(self) -> feature.PurgedTables:
        from .models import ShareLink

        return feature.PurgedTables(
            removed={ShareLink: lambda pk: ShareLink.objects.filter(session=pk)},
            names={ShareLink: gettext_noop("share links")},
        )
