from django.utils.translation import gettext_noop

from conversations import feature


class DiscordConfig(feature.Feature):
    name = "conversations.features.discord"
    verbose_name = "Discord"

    def ready(self) -> None:
        from loomweb.env import SettingsError

        from .options import BadRules, read_rules

        # As with every setting, a bad value stops every process at its start, not only the bot.
        try:
            read_rules()
        except BadRules as error:
            raise SettingsError(f"{error}. See docs/discord.md.") from error

    def purged_tables(self) -> feature.PurgedTables:
        from .models import ChannelReply

        return feature.PurgedTables(
            removed={ChannelReply: lambda pk: ChannelReply.objects.filter(session=pk)},
            names={ChannelReply: gettext_noop("channel replies")},
        )
