"""The choices of a person's preferences, and the roles in a workspace."""

from collections.abc import Iterable

from .messages import say

# The choices of the preferences for pages: value → label.
THEMES = {"auto": say("System"), "light": say("Light"), "dark": say("Dark")}

KEYS = {
    "all": say("All"),
    "no_letters": say("All except single letters"),
    "none": say("Only Enter and Esc"),
}

ENTERS = {"send": say("Sends the message"), "break": say("Starts a new line")}

# Languages of pages, each named in its own language.
PAGE_LANGUAGES = {"": say("Browser’s language"), "en": "English", "de": "Deutsch"}

# Languages of dates, by the codes of browsers, each named in its own language.
LANGUAGES = {
    "": say("Browser’s language"),
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

CLOCKS = {"h23": say("24-hour"), "h12": say("12-hour")}

# The form of times in lists.
TIMES = {"relative": say("Relative"), "exact": say("Date and time")}

FIGURES = {"folded": say("Hidden behind the duration"), "shown": say("Always shown")}

# The parts of an answer that a screen reader announces.
HEARS = {
    "end": say("The complete answer"),
    "parts": say("Paragraph by paragraph"),
    "nothing": say("Only when it is complete"),
}

VIEWER, MEMBER, OWNER = "viewer", "member", "owner"
ROLES = (VIEWER, MEMBER, OWNER)
ROLE_NAMES = {VIEWER: say("viewer"), MEMBER: say("member"), OWNER: say("owner")}


def strongest(roles: Iterable[str]) -> str | None:
    """Return the strongest of these roles, or None if there are none."""
    return max(roles, key=ROLES.index, default=None)
