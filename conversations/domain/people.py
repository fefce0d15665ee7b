"""The roles in a workspace, from the weakest to the strongest."""

from collections.abc import Iterable

# What a person can choose of how pages look and behave: value → words.
THEMES = {"auto": "System", "light": "Light", "dark": "Dark"}

KEYS = {
    "all": "All",
    "no_letters": "All except single letters",
    "none": "Only Enter and Esc",
}

ENTERS = {"send": "Sends the message", "break": "Starts a new line"}

# Languages of dates, as browsers name them.
LANGUAGES = {
    "": "Browser’s language",
    "en-GB": "English (United Kingdom)",
    "en-US": "English (United States)",
    "en-CA": "English (Canada)",
    "cs": "Čeština",
    "da": "Dansk",
    "de": "Deutsch",
    "es": "Español",
    "fr": "Français",
    "it": "Italiano",
    "nl": "Nederlands",
    "nb": "Norsk",
    "pl": "Polski",
    "pt": "Português",
    "pt-BR": "Português (Brasil)",
    "fi": "Suomi",
    "sv": "Svenska",
    "tr": "Türkçe",
    "uk": "Українська",
    "ja": "日本語",
    "ko": "한국어",
    "zh-CN": "中文",
}

CLOCKS = {"h23": "24 hours", "h12": "12 hours"}
TIMES = {"relative": "Relative", "exact": "Date and time"}  # How lists say when something was.

FIGURES = {"folded": "Behind the time it took", "shown": "Always shown"}

# What a screen reader says of an answer.
HEARS = {
    "end": "All of it at its end",
    "parts": "Paragraph by paragraph",
    "nothing": "Only that it is complete",
}

VIEWER, MEMBER, OWNER = "viewer", "member", "owner"
ROLES = (VIEWER, MEMBER, OWNER)


def strongest(roles: Iterable[str]) -> str | None:
    """What somebody is who was given these roles; None for none."""
    return max(roles, key=ROLES.index, default=None)
