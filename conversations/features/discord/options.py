"""The rules that say who may talk to the bot, and where.

A message is answered if its place is open and its author is allowed. By default no place is open
and no author is allowed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from django.conf import settings

CHANNEL = "discord"


class BadRules(ValueError):
    """An entry of the settings cannot be read; the message names the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLocation:
    """The place of a message. ``guild`` is None for a direct message.

    ``parent`` is the channel of a thread."""

    channel: int
    guild: int | None = None
    parent: int | None = None

    def key(self, *, author: int) -> str:
        """Return the key of the place's session."""
        if self.guild is None:
            return f"{CHANNEL}:dm:{author}"
        return f"{CHANNEL}:{'channel' if self.parent is None else 'thread'}:{self.channel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordRules:
    """The rules for who may talk to the bot, and where.

    ``people`` maps Discord ids to usernames, which are empty for people without an account. If
    ``everybody``, each person who can write in an open place is allowed there, but not in direct
    messages. If ``mentions_only``, the bot answers outside of direct messages only if it is
    mentioned or replied to."""

    guilds: frozenset[int] = frozenset()
    channels: frozenset[int] = frozenset()
    people: Mapping[int, str] = field(default_factory=dict)
    everybody: bool = False
    mentions_only: bool = True

    def admits(self, author: int, location: MessageLocation) -> bool:
        if location.guild is None:
            return author in self.people
        return self.is_open(location) and (self.everybody or author in self.people)

    def is_open(self, location: MessageLocation) -> bool:
        return location.guild in self.guilds or bool(
            {location.channel, location.parent} & self.channels
        )

    @property
    def admits_strangers(self) -> bool:
        """Whether people without an account are allowed."""
        return self.everybody or not all(self.people.values())

    def account_of(self, author: int | None) -> str:
        """Return the username of the author's account, or "" if they have none."""
        return self.people.get(author, "") if author is not None else ""


def read_ids(texts: Iterable[str]) -> frozenset[int]:
    """Convert texts to ids. Raise BadRules."""
    return frozenset(_read_id(text) for text in texts)


def read_people(texts: Iterable[str]) -> tuple[dict[int, str], bool]:
    """Read people from ``id`` and ``id=account``, and whether ``*`` is given. Raise BadRules."""
    people: dict[int, str] = {}
    everybody = False
    for text in texts:
        if text.strip() == "*":
            everybody = True
            continue
        number, _, account = text.partition("=")
        people[_read_id(number)] = account.strip()
    return people, everybody


def _read_id(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise BadRules(f"{text[:40]!r} is not a Discord ID, which is a number")
    return int(text)


def read_rules() -> DiscordRules:
    """Read the rules from the settings. Raise BadRules."""
    loom = settings.LOOM
    people, everybody = read_people(loom.discord_users)
    return DiscordRules(
        guilds=read_ids(loom.discord_guilds),
        channels=read_ids(loom.discord_channels),
        people=people,
        everybody=everybody,
        mentions_only=loom.discord_answer == "mentions",
    )
