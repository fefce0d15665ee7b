"""The recall hint: the turns that it names, and messages that get no hint."""

import random
from collections.abc import Iterable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.agent.window.related_turns import (
    MAX_WORDS,
    PHRASE_HINT,
    PHRASES,
    find_hint,
    find_related_turns,
    name_turns,
)
from conversations.archive.append import append
from conversations.archive.rewinds import append_rewind
from conversations.domain.text import estimate_tokens
from conversations.domain.turns import NewTurn
from conversations.models import Session

from .conversation_samples import HELD_OUT, REPLIES, TUNING, Fact, Half

pytestmark = pytest.mark.django_db


def keep(session: Session, *texts: str) -> int:
    """Append turns of the person and the assistant alternately and return the last number."""
    turns = [
        NewTurn(role="assistant" if place % 2 else "user", content=text)
        for place, text in enumerate(texts)
    ]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    session.refresh_from_db()
    return session.turn_count


def hint_for(session: Session, text: str, *, floor: int) -> str:
    """Return the hint for a message that comes now. The message is not stored."""
    return find_hint(session.pk, text, floor=floor, turn=session.next_turn)


def chat(exchanges: Iterable[tuple[str, str]]) -> list[str]:
    return [text for exchange in exchanges for text in exchange]


class Story:
    """A session with facts among everyday talk. Only the end of it is in the window."""

    def __init__(self, session: Session, facts: Iterable[Fact], talk: Half, seed: int) -> None:
        self._random = random.Random(seed)
        self._talk = talk
        self.session = session
        self.turn_of: dict[Fact, int] = {}
        texts: list[str] = []
        for fact in facts:
            texts += [*self._filler(5), fact.said, "Noted."]
            self.turn_of[fact] = len(texts) - 1
        self.floor = keep(session, *texts, *self._filler(10)) + 1
        keep(session, *self._filler(12))

    def _filler(self, count: int) -> list[str]:
        pick = self._random.choice
        return chat((pick(self._talk.ordinary), pick(REPLIES)) for _ in range(count))

    def named(self, text: str) -> list[int]:
        return find_related_turns(
            self.session.pk, text, floor=self.floor, turn=self.session.next_turn
        )


@pytest.mark.parametrize(("half", "other", "seed"), [(TUNING, HELD_OUT, 1), (HELD_OUT, TUNING, 2)])
def test_hint_names_the_right_turn_and_rarely_a_wrong_one(
    session: Session, half: Half, other: Half, seed: int
) -> None:
    story = Story(session, half.facts, other, seed)
    right = [fact for fact in half.facts if story.turn_of[fact] in story.named(fact.asked)]
    false = [text for text in half.ordinary if hint_for(session, text, floor=story.floor)]
    assert len(right) >= 27, set(half.facts) - set(right)
    assert len(false) <= 4, false


def test_hint_is_a_short_line(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.", "thanks", "You are welcome.")
    hint = hint_for(session, "Where is the aquarium pump from?", floor=3)
    assert hint == (
        "[Archive: turn 1 (outside this window) seems related; conversation_recall range shows it.]"
    )
    assert estimate_tokens(name_turns([10**6, 10**6 + 1, 10**6 + 2])) <= 60
    assert estimate_tokens(PHRASE_HINT) <= 60


def test_no_hint_is_given_if_the_window_contains_all_turns(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.")
    for text in ("Where is the aquarium pump from?", "as before"):
        assert hint_for(session, text, floor=1) == ""


def test_no_hint_is_given_for_facts_that_the_window_contains(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.", *["thanks", "ok"] * 5)
    keep(session, "The aquarium pump, from Tartu, is broken.", "I see.")
    assert hint_for(session, "Where is the aquarium pump from?", floor=9) == ""


def test_message_does_not_count_as_a_related_turn(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.", "thanks", "ok")
    turn = keep(session, "Where is the aquarium pump from?")
    named = find_related_turns(session.pk, "Where is the aquarium pump from?", floor=3, turn=turn)
    assert named == [1]


def test_replaced_turns_are_not_named(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.")
    append_rewind(session, from_turn=1, from_seq=None, reason="edit", actor_pk=None)
    keep(session, "Hello.", "Hello.", "thanks", "ok")
    assert hint_for(session, "Where is the aquarium pump from?", floor=5) == ""


def test_word_that_occurs_everywhere_gives_no_hint(session: Session) -> None:
    keep(session, *["The aquarium is fine.", "Good."] * 70)
    assert hint_for(session, "How is the aquarium?", floor=100) == ""


def test_message_without_significant_words_needs_no_query(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.", "thanks", "ok")
    for text in ("", "?!", "the of and", "thanks", "\x00\ud800", '"' * 999):
        with CaptureQueriesContext(connection) as captured:
            assert hint_for(session, text, floor=3) == "", text
        assert len(captured) == 0, text


def test_huge_message_needs_no_more_queries_than_a_long_one(session: Session) -> None:
    keep(session, "The aquarium pump is from Tartu.", "Noted.", "thanks", "ok")
    words = " ".join(f"zw{number}q" for number in range(50_000))
    with CaptureQueriesContext(connection) as captured:
        hint_for(session, words, floor=3)
    assert len(captured) <= MAX_WORDS * 4 + 6


def test_listed_phrase_gives_the_phrase_hint_in_any_case(session: Session) -> None:
    keep(session, "Hello.", "Hello.", "thanks", "ok")
    for phrase in PHRASES:
        for text in (f"Well, {phrase}.", phrase.upper(), f"{phrase.title()}, please"):
            assert hint_for(session, text, floor=3) == PHRASE_HINT, text


def test_part_of_a_word_does_not_match_a_phrase(session: Session) -> None:
    keep(session, "Hello.", "Hello.", "thanks", "ok")
    for text in ("Use that filename.", "The pearlier one", "was before"):
        assert hint_for(session, text, floor=3) == "", text


def test_phrase_about_something_in_the_window_gives_no_hint(session: Session) -> None:
    keep(session, "An error occurred.", "I see.", "There is an error in line 3.", "I see.")
    assert hint_for(session, "Fix that error.", floor=3) == ""
    assert hint_for(session, "Open that file.", floor=3) == PHRASE_HINT


def test_question_about_the_person_needs_few_matching_words(session: Session) -> None:
    """The matching words may be in different turns and be a small part of the question."""
    keep(session, "The pump is from Tartu.", "Noted.", "The filter is blue.", "Noted.")
    keep(session, *["thanks", "ok"] * 3)
    general = "What would a zeppelin engineer say of a pump and a filter?"
    assert hint_for(session, general, floor=5) == ""
    own = "What would a zeppelin engineer say of my pump and our filter?"
    assert hint_for(session, own, floor=5).startswith("[Archive: turns 1, 3 (outside this window)")


@pytest.mark.parametrize("asked", ["How do I", "What can we", "Where should you", "how to"])
def test_general_question_is_not_treated_as_about_the_person(session: Session, asked: str) -> None:
    keep(session, "The pump is from Tartu.", "Noted.", *["thanks", "ok"] * 3)
    assert hint_for(session, f"{asked} repair a zeppelin pump?", floor=3) == ""


def test_hint_names_at_most_twelve_turns(session: Session) -> None:
    for number in range(20):
        keep(session, f"The pump number {number} is from Tartu.", "Noted.", "thanks", "ok")
    keep(session, *["thanks", "ok"] * 40)
    named = find_related_turns(
        session.pk, "Which of my pumps are from Tartu?", floor=100, turn=session.next_turn
    )
    assert len(named) == 12
    assert named == sorted(named)


@pytest.mark.parametrize(
    "text",
    [
        "Which ticket did commit 3f2a9bc1d belong to?",
        'Which ticket did the commit "3f2a9bc1d fix" belong to?',
        "I see role:system and tool:nothing. Which ticket did commit 3f2a9bc1d belong to?",
    ],
)
def test_message_is_not_parsed_as_a_query(session: Session, text: str) -> None:
    said = ["the commit that broke it was 3f2a9bc1d, ticket LOOM-1423", "Noted."]
    filler = ["Please look at the parser once more.", "It looks fine."] * 100
    keep(session, *filler[:8], *said, *filler)
    assert hint_for(session, text, floor=190) == name_turns([9])
