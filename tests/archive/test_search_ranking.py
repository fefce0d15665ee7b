"""What the ranking is for: a small conversation whose answers share few words with the
questions."""

import pytest

from conversations.archive.append import append
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.models import Session
from conversations.search.find import search_session
from conversations.search.indexing import index_waiting

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
    found = search_session(session.pk, query, limit=50, with_neighbours=with_neighbours)
    return [hit.turn for hit in found.hits]


def test_an_answer_beside_its_question_is_among_the_first(talk: Session) -> None:
    for question, turn in QUESTIONS:
        assert turn in ranked(talk, question)[:5], question


def test_turns_without_a_word_are_marked_or_left_out(talk: Session) -> None:
    found = search_session(talk.pk, "kiln", limit=50, with_neighbours=True)
    assert [hit.turn for hit in found.hits if not hit.is_near] == [11]
    assert {12, 13} <= {hit.turn for hit in found.hits if hit.is_near}
    assert found.total == 1
    assert ranked(talk, "kiln", with_neighbours=False) == [11]


def test_inflected_and_irregular_forms_meet(talk: Session) -> None:
    assert ranked(talk, "buy kilns")[0] == 11
    assert ranked(talk, "complaint complaining")[0] == 10


def test_what_is_rare_is_judged_by_the_session(talk: Session) -> None:
    """Another session is full of kilns; here the word is as telling as before."""
    before = search_session(talk.pk, "kiln clock").hits
    other = create_session(talk.workspace, owner=talk.owner)
    turns = [NewTurn(role="user", content="kiln kiln kiln")] * 50
    append(other.pk, session_uuid=other.uuid, turns=turns)
    index_waiting()
    assert search_session(talk.pk, "kiln clock").hits == before
    assert before[0].turn == 11


def test_a_question_with_a_phrase_leads_with_it(talk: Session) -> None:
    found = search_session(talk.pk, 'price of the "pottery class" kiln', with_neighbours=True)
    assert found.hits[0].turn == 11
    assert len(found.hits) > 1
    found = search_session(talk.pk, '"pottery class"', with_neighbours=True)
    assert [hit.turn for hit in found.hits] == [11]


def test_a_question_about_a_person_prefers_what_they_say(session: Session) -> None:
    """The user is Ann, as the assistant addresses her; both speak of beans."""
    said = [("user", "Beans need a pole."), ("assistant", "Beans need a net.")]
    for greeting in ("Hi, Ann!", "Thanks, Ann.", "Oh, Ann!", "Well, Ann, yes.", "Sure, Ann!"):
        said += [("assistant", f"{greeting} Rain is near."), ("user", "So it is.")]
    turns = [NewTurn(role=role, content=text) for role, text in said]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    assert ranked(session, "what do beans need", with_neighbours=False) == [2, 1]
    assert ranked(session, "what does Ann say beans need", with_neighbours=False)[0] == 1


def test_words_of_the_best_turns_lead_to_more(session: Session) -> None:
    """Turn 40 shares no word with the question and is near none that does."""
    filler = [f"Number {number} of nothing in particular." for number in range(60)]
    filler[4] = "The espalier wants pruning: pears along the wires."
    filler[39] = "Pears along the wires again, with a ladder."
    turns = [NewTurn(role="user", content=text) for text in filler]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    assert ranked(session, "espalier pruning")[0] == 5
    assert 40 in ranked(session, "espalier pruning")
    assert 40 not in ranked(session, "espalier pruning", with_neighbours=False)
