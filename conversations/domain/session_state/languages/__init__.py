"""The languages in which statements are recognised. Each has one table, which is read once.

``docs/session-state.md`` describes the tables and what each language covers.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conversations.domain.search_tokens import read_tokens

NEVER = re.compile(r"(?!)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The compiled patterns and the words of a language.

    A pattern that the language does not have matches nothing. ``mail_people`` are the names of
    lines at the top of a mail with its author and readers, and ``mail_headers`` are those of other
    lines. ``borders`` match the ends of a clause with a value. ``without`` are tokens that do not
    belong to the topic of a statement. ``negative`` are tokens that make a rule a prohibition.
    ``conditions`` are words that begin a condition, unless a word of ``regardless`` precedes them.
    ``changing`` are tokens that do not name the thing that has a value. ``alternatives`` maps each
    token to its group, of which only one token holds at a time.
    """

    hints: tuple[str, ...]
    filler: re.Pattern[str]
    doubt: re.Pattern[str]
    story: re.Pattern[str]
    once: re.Pattern[str]
    task: re.Pattern[str]
    inner: re.Pattern[str]
    mail_people: tuple[str, ...]
    mail_headers: tuple[str, ...]
    strong: re.Pattern[str]
    conditional: re.Pattern[str]
    weak: re.Pattern[str]
    alone: re.Pattern[str]
    decisions: re.Pattern[str]
    preferences: re.Pattern[str]
    preference_hints: tuple[str, ...]
    preference_words: int
    asked: re.Pattern[str]
    named: re.Pattern[str]
    named_ends: re.Pattern[str]
    says: str
    refers: re.Pattern[str]
    ends: re.Pattern[str]
    countable: re.Pattern[str]
    quantity: re.Pattern[str]
    changed: re.Pattern[str]
    new_since: re.Pattern[str]
    aimed: re.Pattern[str]
    owned: re.Pattern[str]
    told: re.Pattern[str]
    untold: re.Pattern[str]
    events: re.Pattern[str]
    dated: re.Pattern[str]
    borders: re.Pattern[str]
    opening: re.Pattern[str]
    without: frozenset[str]
    negative: frozenset[str]
    conditions: tuple[str, ...]
    regardless: tuple[str, ...]
    changing: frozenset[str]
    alternatives: dict[str, int]
    units: dict[str, str]


@cache
def read_languages() -> tuple[Language, ...]:
    """Return all languages, English first."""
    files = sorted(Path(__file__).parent.glob("*.toml"), key=lambda file: file.stem != "english")
    return tuple(_language(tomllib.loads(file.read_text())) for file in files)


def _language(table: dict[str, Any]) -> Language:
    parts = table.get("parts", {})
    verbs = table.get("words", {}).get("verbs", "").split()
    longest_first = "|".join(sorted(verbs, key=lambda verb: (-len(verb), verb)))
    parts["verb"] = rf"(?!give up\b|let (?:me|us)\b)(?:{longest_first})\b(?![-'’])"

    def compiled(*patterns: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
        if not any(patterns):
            return NEVER
        text = "|".join(f"(?:{pattern})" for pattern in patterns).replace("\n", "")
        while (name := re.search(r"<([a-z_]+)>", text)) is not None:
            text = text.replace(name[0], parts[name[1]].replace("\n", ""))
        return re.compile(text, flags)

    rules, values = table.get("rules", {}), table.get("values", {})
    parts["days"] = values.get("days", "")
    preferences = table.get("preferences", {})
    groups = enumerate(table.get("alternatives", {}).get("groups", []))
    return Language(
        hints=tuple(table["hints"]),
        filler=compiled(table.get("filler", "") or "(?=)"),
        doubt=compiled(table.get("doubt", "")),
        story=compiled(table.get("story", "")),
        once=compiled(table.get("once", "")),
        task=compiled(table.get("task", "")),
        inner=compiled(table.get("inner", "")),
        mail_people=tuple(table.get("mail_people", "").split()),
        mail_headers=tuple(table.get("mail_headers", "").split()),
        strong=compiled(*rules.get("strong", [])),
        conditional=compiled(*rules.get("conditional", [])),
        weak=compiled(*rules.get("weak", [])),
        alone=compiled(*rules.get("alone", [])),
        decisions=compiled(*table.get("decisions", {}).get("strong", [])),
        preferences=compiled(*preferences.get("strong", [])),
        preference_hints=tuple(preferences.get("hints", [])),
        preference_words=preferences.get("min_words", 4),
        asked=compiled(preferences.get("asked", "")),
        named=compiled(preferences.get("named", "")),
        named_ends=compiled(preferences.get("named_ends", "")),
        says=preferences.get("says", ""),
        refers=compiled(preferences.get("refers", "")),
        ends=compiled(preferences.get("ends", "")),
        countable=compiled(rf"\d|\b(?:{values['days']})\b" if values else ""),
        quantity=_quantity(values),
        changed=compiled(rf"(?:{values['changed']})$" if values else ""),
        aimed=compiled(values.get("aimed", "")),
        owned=compiled(values.get("owned", "")),
        told=compiled(values.get("told", "")),
        untold=compiled(values.get("untold", "")),
        events=compiled(values.get("events", "")),
        dated=compiled(values.get("dated", "")),
        new_since=compiled(values.get("new_since", "")),
        borders=compiled(values.get("borders", "")),
        opening=compiled(values.get("opening", "") or "(?=)"),
        without=frozenset(read_tokens(rules.get("without", ""))),
        negative=frozenset(read_tokens(rules.get("negative", ""))),
        conditions=tuple(rules.get("conditions", "").split()),
        regardless=tuple(rules.get("regardless", "").split()),
        changing=frozenset(read_tokens(values.get("changing", ""))),
        alternatives={token: index for index, line in groups for token in read_tokens(line)},
        units={
            spelled: line.split()[0]
            for line in values.get("same_units", [])
            for spelled in line.split()
        },
    )


def _quantity(values: dict[str, Any]) -> re.Pattern[str]:
    """Return a pattern for a number with its unit.

    It has the groups money, percent, clock, date, measure and count, of which one matches.
    """
    if not values:
        return NEVER
    number = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
    parts = (
        rf"(?P<money>[$€£¥]\s?(?:{number})(?:[kmb]\b)?|(?:{number})\s(?:usd|eur|gbp|dollars?|euros?)\b)",
        rf"(?P<percent>(?:{number})\s?(?:%|percent\b))",
        r"(?P<clock>\b\d{1,2}(?::\d\d)?\s?[ap]\.?m\b|\b\d{1,2}:\d\d\b)",
        rf"(?P<date>\b(?:{values['months']})\s\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s\d{{4}}\b)?"
        rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\s(?:of\s)?(?:{values['months']})\b(?:,?\s\d{{4}}\b)?"
        rf"|\b(?:{values['days']})\b"
        r"|\b\d{4}-\d\d-\d\d\b|\b\d{1,2}/\d{1,2}/\d{2,4}\b)",
        rf"(?P<measure>\b(?:{number})(?:-(?:{number}))?[\s-]?(?:{values['units']})\b)",
        rf"(?P<count>\b(?:{number})(?:/\d+)?\b(?!\s?[/^*+=(){{}}\\]))",
    )
    return re.compile("|".join(parts).replace("\n", ""), re.IGNORECASE)
