from conversations import feature


class SharingConfig(feature.Feature):
    name = "conversations.features.sharing"
    verbose_name = "Share links"

    def purged_tables(self) -> feature.PurgedTables:
        from .models import ShareLink

        return feature.PurgedTables(
            removed={ShareLink: lambda pk: ShareLink.objects.filter(session=pk)}
        )
