from conversations import feature


class UsageConfig(feature.Feature):
    name = "conversations.features.usage"
    verbose_name = "Usage and budgets"

    def purged_tables(self) -> feature.PurgedTables:
        from .models import UsageDay
        from .recording import forget_session

        return feature.PurgedTables(
            folded={UsageDay: forget_session}, names={UsageDay: "sums of what was used"}
        )

    def on_model_call(self, usage: feature.CallUsage) -> None:
        from .recording import add_call

        add_call(usage)
