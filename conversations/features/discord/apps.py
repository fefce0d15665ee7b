from conversations import feature


class DiscordConfig(feature.Feature):
    name = "conversations.features.discord"
    verbose_name = "Discord"

    def purged_tables(self) -> feature.PurgedTables:
        from .models import ChannelReply

        return feature.PurgedTables(
            removed={ChannelReply: lambda pk: ChannelReply.objects.filter(session=pk)}
        )
