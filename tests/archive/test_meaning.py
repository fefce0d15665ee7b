"""Vectors of turns: created in the background, found by meaning, deleted with their session."""

import hashlib
import re
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from conversations.archive.append import append
from conversations.archive.sessions import create_session
from conversations.domain.turns import NewTurn
from conversations.models import SearchProgress, Session, TurnEmbedding, Workspace
from conversations.models.search import entry_id
from conversations.search import meaning
from conversations.search.indexing import index_session, remove_session
from conversations.search.meaning import (
    check_session,
    embed_waiting,
    find_similar,
    read_batch,
    store_embeddings,
)
from loomweb.env import find_embedding_model
from tests.archive.searching import find_in

# The published file of sentence-transformers/all-MiniLM-L6-v2.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"

MODEL = find_embedding_model()
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(MODEL is None, reason="the extra semantic is not installed"),
]


@pytest.fixture(autouse=True)
def with_meaning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(settings.LOOM, "embedding_model", MODEL)
    meaning._cached.clear()  # the next test's session may have the same key
    yield
    meaning._cached.clear()


def say(session: Session, *contents: str, role: str = "user") -> None:
    turns = [NewTurn(role=role, content=content) for content in contents]
    append(session.pk, session_uuid=session.uuid, turns=turns)
    index_session(session.pk)


def test_search_page_marks_hits_that_are_only_similar(
    session: Session, user: User, client: Client
) -> None:
    say(session, RENT, "The tenants are here.", *["Nothing of note today."] * 20)
    embed_waiting()
    client.force_login(user)
    page = client.get(f"/s/{session.uuid}/find/", {"q": "tenants payday"}).text
    hits = re.findall(r'data-turn="(\d+)">(.*?)</li>', page, re.DOTALL)
    is_similar = {int(turn): "Similar in meaning" in hit for turn, hit in hits}
    assert (is_similar[1], is_similar[2]) == (True, False)


def nearest(session: Session, text: str, *, last: int = 1000) -> int | None:
    low, high = entry_id(session.pk, 1), entry_id(session.pk, last)
    found = find_similar(session.pk, text, low=low, high=high)
    return None if found is None else found.best(1)[0] - entry_id(session.pk, 0)


def test_embedding_model_is_the_published_one() -> None:
    assert MODEL is not None
    weights = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()
    vocabulary = hashlib.sha256((MODEL / "vocab.txt").read_bytes()).hexdigest()
    assert (weights, vocabulary) == (WEIGHTS_SHA256, VOCABULARY_SHA256)
    assert "Apache License" in (MODEL / "LICENSE").read_text()


def test_tokens_match_those_of_the_original_tokenizer() -> None:
    read_tokens = meaning.load_embedding()._read_tokens
    # The result of tokenizers 0.23.3 with the original's tokenizer.json.
    hall = [101, 7668, 1011, 7251, 2123, 1005, 1056, 4906, 1999, 15743, 1035, 3415, 1024]
    assert read_tokens("Café-Tables don't fit\tin naïve_names: 東京!") == [
        *hall,
        *(1879, 1755, 999, 102),
    ]
    pieces = [101, 19169, 8180, 20760, 3070, 23653, 2791, 2229, 102]
    assert read_tokens("Überraschung\x00 unbelievablenesses") == pieces


RENT = "My landlord wants the rent on the third of each month."
ASKED = "When is the flat to be paid?"
WATER = "The tomatoes need water every evening."


def test_similarities_match_those_of_the_original_model() -> None:
    embedding = meaning.load_embedding()
    vectors = [embedding.embed(text) for text in (RENT, WATER)]
    matrix = embedding.VectorMatrix.read([(1, vectors[1]), (0, vectors[0])])
    found = matrix.compare(embedding.embed(ASKED), low=0, high=1)
    # The result of the original's weights with the exact error function.
    assert found.values.tolist() == pytest.approx([0.3419, 0.0697], abs=0.01)


def test_turn_is_found_by_meaning_after_its_vector_is_stored(session: Session) -> None:
    say(session, WATER, RENT, "The roof of the shed leaks.")
    assert nearest(session, ASKED) is None  # vectors are made in the background
    assert embed_waiting() == 3
    assert nearest(session, ASKED) == 2
    assert nearest(session, ASKED, last=1) == 1
    say(session, "The flat costs 900 a month, to be paid on the fifth.")
    assert nearest(session, ASKED) == 2
    assert embed_waiting() == 1
    assert nearest(session, ASKED) == 4


def test_search_finds_a_similar_turn_without_a_common_word(session: Session) -> None:
    say(
        session,
        WATER,
        "The roof of the shed leaks.",
        RENT,
        "Bread is in the oven.",
        "See you soon.",
    )
    say(session, *["Nothing of note today."] * 20)
    assert not find_in(session.pk, "tenants payday", with_neighbours=True).hits
    embed_waiting()
    [hit, *_] = find_in(session.pk, "tenants payday", with_neighbours=True).hits
    assert (hit.turn, hit.is_near) == (3, True)
    assert not find_in(session.pk, "quantum chromodynamics", with_neighbours=True).hits
    assert find_in(session.pk, "tenants payday").hits[0].turn == 3
    # Filters apply. A phrase or a field filter requires exactly these words.
    assert find_in(session.pk, "tenants payday role:user").hits[0].turn == 3
    for query in ("role:assistant tenants payday", "'tenants payday'", "in:text tenants payday"):
        assert not find_in(session.pk, query.replace("'", '"')).hits


def test_pages_do_not_repeat_hits_when_vectors_are_stored_between(session: Session) -> None:
    say(session, *[f"The flat costs {n} a month." for n in range(100, 140)])
    first = find_in(session.pk, "rent of the flat", limit=5, with_neighbours=True)
    batch = read_batch()
    assert batch is not None
    store_embeddings(batch, meaning.embed_texts(batch.texts.values()))
    first = find_in(session.pk, "rent of the flat", limit=5, with_neighbours=True)
    embed_waiting()
    second = find_in(
        session.pk, "rent of the flat", limit=50, cursor=first.cursor, with_neighbours=True
    )
    shown = [hit.turn for hit in (*first.hits, *second.hits)]
    assert sorted(shown) == list(range(1, 41))


def test_second_page_continues_a_page_from_before_the_vectors(session: Session) -> None:
    say(session, *[f"The flat costs {n} a month." for n in range(100, 110)])
    query = "rent of the flat after:2"
    first = find_in(session.pk, query, limit=5)
    embed_waiting()
    second = find_in(session.pk, query, limit=50, cursor=first.cursor)
    shown = [hit.turn for hit in (*first.hits, *second.hits)]
    assert sorted(shown) == list(range(3, 11))


def test_later_searches_read_only_new_vectors(session: Session) -> None:
    say(session, WATER, RENT)
    embed_waiting()
    nearest(session, ASKED)
    say(session, "The roof of the shed leaks.")
    embed_waiting()
    with CaptureQueriesContext(connection) as queries:
        nearest(session, ASKED)
    [query] = queries.captured_queries
    assert str(entry_id(session.pk, 2)) in query["sql"]


def test_turns_without_a_useful_meaning_get_no_vector(session: Session) -> None:
    say(session, "東京の天気はどうですか", "12 + 30")
    say(session, RENT, role="tool")
    say(session, RENT, "word " * meaning.MAX_ANSWER_WORDS, "word " * 100, role="assistant")
    embed_waiting()
    stored = TurnEmbedding.objects.values_list("pk", flat=True)
    assert [pk - entry_id(session.pk, 0) for pk in stored] == [4, 5]
    assert find_similar(session.pk, "天気", low=0, high=1 << 60) is None
    assert check_session(session.pk) == ""


def test_number_of_vectors_in_memory_is_limited(
    session: Session, workspace: Workspace, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meaning, "MAX_VECTORS", 2)
    monkeypatch.setattr(meaning, "MAX_CACHED_VECTORS", 3)
    garden = create_session(workspace, owner=user)
    for each in (session, garden):
        say(each, RENT, WATER, "The roof of the shed leaks.")
    embed_waiting()
    assert nearest(session, ASKED) != 1  # turn 1 is not one of the newest two
    nearest(garden, ASKED)
    assert list(meaning._cached) == [garden.pk]


def test_two_processes_store_a_batch_once(session: Session) -> None:
    say(session, RENT)
    first, second = read_batch(), read_batch()
    assert first is not None
    assert second is not None
    vectors = meaning.embed_texts(first.texts.values())
    assert store_embeddings(first, vectors)
    assert not store_embeddings(second, vectors)


def test_vectors_are_deleted_with_their_session(session: Session) -> None:
    say(session, RENT)
    batch = read_batch()
    assert batch is not None
    assert store_embeddings(batch, meaning.embed_texts(batch.texts.values()))
    remove_session(session.pk)
    assert not TurnEmbedding.objects.exists()
    assert not store_embeddings(batch, [b"of a session that is gone"])
    assert not TurnEmbedding.objects.exists()


def test_rebuild_index_command_makes_vectors_again(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    say(session, RENT, WATER)
    embed_waiting()
    before = list(TurnEmbedding.objects.values_list("pk", "vector"))
    TurnEmbedding.objects.filter(pk=entry_id(session.pk, 2)).delete()
    assert check_session(session.pk) == "turn 2 has no vector"
    with pytest.raises(SystemExit):
        call_command("rebuild_index", "--check")
    assert "turn 2 has no vector" in capsys.readouterr().out
    call_command("rebuild_index")
    assert "2 vectors made" in capsys.readouterr().out
    assert list(TurnEmbedding.objects.values_list("pk", "vector")) == before


def test_without_the_model_no_vectors_are_made(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.LOOM, "embedding_model", None)
    say(session, RENT)
    assert embed_waiting() == 0
    assert nearest(session, ASKED) is None
    assert SearchProgress.objects.get().embedded_turn == 0
