"""Ranking of search results in a small conversation.

Its answers share few words with the questions.
"""

import pytest

from conversations.archive.append import append
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.search.indexing import index_waiting
from tests.archive.searching import find_in

pytestmark = pytest.mark.django_db

TALK = [
    "Morning! How was the workshop on clocks?",  # 1
    "Splendid. We took apart an old wall clock.",
    "Did you manage to repair it?",
    "Only the pendulum. The spring had snapped.",
    "Pity. By the way, the roof of the barn leaks again.",  # 5
    "I know. Marten climbed up with a bucket of tar.",
    "Where does he live these days?",
    "Near the harbour, above the bakery.",
    "Lovely smell in the morning, I guess.",
    "He complains about the seagulls instead.",  # 10
    "We bought a kiln for the pottery class.",
    "What did that cost?",
    "Nine hundred, second-hand.",
    "A bargain if it heats evenly.",
    "The clock in the hall has stopped too.",  # 15
    "Everything stops in this house.",
]

QUESTIONS = [
    ("What broke in the wall clock?", 4),
    ("Who fixed the leaking roof?", 6),
    ("What does Marten's home lie above?", 8),
    ("How much was buying the kiln?", 13),
]


@pytest.fixture
def talk(session: Session) -> Session:
    roles = ("user", "assistant")
    turns = [NewTurn(role=roles[n % 2], content=text) for n, text in enumerate(TALK)]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    return session


def ranked(session: Session, query: str, *, with_neighbours: bool = True) -> list[int]:
    found = find_in(session.pk, query, limit=50, with_neighbours=with_neighbours)
    return [hit.turn for hit in found.hits]


def test_answer_next_to_its_question_is_among_the_first_hits(talk: Session) -> None:
    for question, turn in QUESTIONS:
        assert turn in ranked(talk, question)[:5], question


def test_turns_without_a_query_word_are_marked_or_left_out(talk: Session) -> None:
    found = find_in(talk.pk, "kiln", limit=50, with_neighbours=True)
    assert [hit.turn for hit in found.hits if not hit.is_near] == [11]
    assert {12, 13} <= {hit.turn for hit in found.hits if hit.is_near}
    assert found.total == 1
    assert ranked(talk, "kiln", with_neighbours=False) == [11]


def test_inflected_and_irregular_forms_match(talk: Session) -> None:
    assert ranked(talk, "buy kilns")[0] == 11
    assert ranked(talk, "complaint complaining")[0] == 10


def test_rarity_of_a_word_depends_only_on_its_session(talk: Session) -> None:
    """A word that is frequent in another session keeps its weight here."""
    before = find_in(talk.pk, "kiln clock").hits
    other = create_session(talk.workspace, owner=talk.owner)
    turns = [NewTurn(role="user", content="kiln kiln kiln")] * 50
    append(other.pk, session_uuid=other.uuid, turns=turns)
    index_waiting()
    assert find_in(talk.pk, "kiln clock").hits == before
    assert before[0].turn == 11


def test_phrase_within_a_question_is_ranked_first(talk: Session) -> None:
    found = find_in(talk.pk, 'price of the "pottery class" kiln', with_neighbours=True)
    assert found.hits[0].turn == 11
    assert len(found.hits) > 1
    found = find_in(talk.pk, '"pottery class"', with_neighbours=True)
    assert [hit.turn for hit in found.hits] == [11]


LONG = " ".join(f"Here is thought number {number} about it." for number in range(60))


def write(session: Session, *texts: str) -> None:
    """Append turns that alternate between the person and the assistant."""
    roles = ("user", "assistant")
    turns = [NewTurn(role=roles[n % 2], content=text) for n, text in enumerate(texts)]
    append(session.pk, session_uuid=session.uuid, turns=turns)


@pytest.mark.parametrize("with_neighbours", [True, False])
def test_short_message_is_not_ranked_below_long_answers(
    session: Session, with_neighbours: bool
) -> None:
    answers = [f"Beans need poles, nets and water. {LONG}"] * 3
    write(
        session, "Hello.", answers[0], "Which?", answers[1], "I gave the beans poles.", answers[2]
    )
    assert ranked(session, "poles for beans", with_neighbours=with_neighbours)[0] == 5


def test_turns_of_equal_length_are_ranked_by_their_words(session: Session) -> None:
    write(session, "Roses here.", "Beans on poles.", "Herbs here.", "Water there.", "Nothing more.")
    assert ranked(session, "beans poles", with_neighbours=False) == [2]
    assert ranked(session, "beans poles")[0] == 2


def test_rule_of_the_person_is_ranked_first_for_a_question(session: Session) -> None:
    said = ["Beans in May, I think.", "Yes."] * 5
    said += ["Always name the month when I ask about beans.", "I will.", "Beans are fine.", "Good."]
    write(session, *said)
    assert ranked(session, "what should I do about beans")[0] == 11


def test_query_for_a_summary_ranks_answers_next_to_messages(session: Session) -> None:
    write(session, "What do beans need?", f"Poles. {LONG}", "And roses?", f"Shears. {LONG}")
    assert ranked(session, "summary of the beans", with_neighbours=True)[:2] == [1, 2]
    assert ranked(session, "about the beans")[1] != 2


def test_query_for_an_order_of_events_finds_later_turns(session: Session) -> None:
    said = ["Nothing of note today."] * 60
    said[9:12] = ["The beans came up by the pole."] * 3
    said[50] = "The beans were late this year, it seems to me."
    turns = [NewTurn(role="user", content=text) for text in said]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    assert 51 not in ranked(session, "how were the beans")[:2]
    assert 51 in ranked(session, "in which order were the beans")[:2]
