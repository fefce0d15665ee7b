from conversations import feature


class TerminalConfig(feature.Feature):
    name = "conversations.features.terminal"
    verbose_name = "Chat in a terminal"
