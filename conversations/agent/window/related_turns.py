"""The older turns that a message is about, if it plainly needs any.

The message shows whether it needs older turns: whether it asks something, whether it refers to the
person or to earlier talk ("my", "did I", "earlier"), and how much weight its words have. A word has
more weight the rarer it is among the turns below the floor. Common words have little weight, and
words that do not occur there have none. A search then finds the turns.

The constants were tuned on BEAM's odd-numbered chats and on one half of ``tests/context/samples``;
``docs/tools.md`` has the figures for the held-out data.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from conversations.archive.turns import read_rewound
from conversations.domain.active_path import are_within
from conversations.domain.search_tokens import find_words, read_tokens, tokens_of_word
from conversations.search.find import read_occurrences, search_session
from conversations.search.query import STOP_TOKENS, make_query

# Words that occur in conversations about any subject, so a match says little about the meaning.
# Function words are not included because a search leaves them out anyway.
_WORDS = """
    able accept accordingly actual add address advice agree ahead allow already always answer
    anything anyone approach area article ask available away back bad base basic become begin behind
    believe best better big bit book both box bring build button buy call cancel care case catch
    cause certain change charge check choose clean clear click close code column come comment commit
    common compare complete consider contain content continue copy correct cost could count create
    current cut data date day decide default define delete depend describe design detail different
    difficult discuss document done draft drop early easy edit effect empty end enough enter entry
    error even event every everything exact example except exist expect explain extra face fact fail
    false far fast feature feel field figure file fill final fine finish first fit fix folder follow
    form format forward free friend full function future general give go good great group grow guess
    half hand handle happen happy hard head hear heading hello help high hold home hope hour house
    idea important include information input inside instead interest issue item job join keep kind
    know label language large last late layout lead learn least leave left length let letter level
    life light like limit line link list little live load local logic long look lose lot love low
    main make manage mark match matter maybe mean meet mention merge message method middle mind
    minute miss module moment money month morning move name near necessary need new next nice night
    none normal note nothing notice number often old one open option order original output own page
    pair paper paragraph part pass people perfect perhaps person pick piece place plain plan play
    please plus point possible prefer prepare present press pretty previous problem proceed process
    program project provide pull push put question quick quite random range reach read ready real
    reason recent record remove rename repeat replace reply report request require rest result
    return review revert right room row rule run safe same save say second section see seem select
    send sense sentence separate set several share short show side similar simple single size skip
    slow small solution solve someone something soon sort sound source space speak split standard
    start state stay step still stop store story string style subject suggest sum summary support
    suppose sure switch table take talk task tell term test text thank thing think third time tiny
    title today together tomorrow top total touch translate true try turn type understand undo
    update use user usual value version view wait walk want watch way week well whole wide win word
    work world worry would write wrong year yesterday yet zero
"""

COMMON = frozenset(token for word in _WORDS.split() for token in read_tokens(word))


# The beginning of a message says what it is about. Its less common words are looked up first.
MAX_MESSAGE_CHARS, MAX_WORDS = 600, 12

MAX_OCCURRENCES = 1000  # A word in so many turns has no weight
COMMON_WEIGHT = 0.3  # The weight of a common word, relative to another word that is as rare

MAX_HITS, MAX_PLACES = 24, 12  # Hits that are considered. Adjacent hits are one place
MIN_SCORE_SHARE = 0.4  # Relative to the best score

# If a single turn of the window has at least this share of the weight of all words, the message is
# about that turn.
MAX_KNOWN_SHARE = 0.95

ASKING = re.compile(
    r"^\W*(?:what|which|who|whom|whose|when|where|why|how|did|do|does|is|are|was|were|had|have"
    r"|has|tell|can|could|would)\b|[?？]|\b(?:remind|forg[eo]t|remember|recall)",
    re.IGNORECASE,
)

# Words that refer to the person or to earlier talk. "How do I …" is a general question.
_REFERRING = re.compile(
    r"\b(?:i|my|mine|we|our|ours|us|earlier|previous|previously|last time)\b", re.IGNORECASE
)
_HOW_TO = re.compile(
    r"\b(?:how|what|where|when|which) (?:do|can|could|should|would|to) (?:i|we|you|one)\b",
    re.IGNORECASE,
)

type Word = tuple[str, ...]  # The tokens of one word as written

# The minimum share of the weight of the message's words that is known below the floor, and the
# minimum known weight. A word that was said there once has the weight 1.0.
REFERRING_QUESTION, QUESTION = (0.3, 0.4), (0.9, 1.5)

# The minimum share of the weight in the best turn: for a question, and for an instruction or a new
# subject, which often share a word with something old.
MIN_QUESTION_SHARE, MIN_STATEMENT_SHARE = 0.6, 0.7

# A turn that has most of the weight by itself: the minimum weight, the minimum number of
# distinctive words, and the maximum number of turns that are as good (within 10 %).
QUESTION_ALONE, STATEMENT_ALONE = (0.7, 2, 2), (1.2, 2, 3)
MIN_TIE_SHARE = 0.9


def find_related_turns(session_pk: int, text: str, *, floor: int, turn: int) -> list[int]:
    """Return the turns below ``floor`` that the message in ``turn`` is about, in order.

    Return no turns unless the message plainly needs some. This takes one query per word and a
    search.
    """
    text = text[:MAX_MESSAGE_CHARS]
    words = read_telling_words(text)
    if floor <= 1 or all(COMMON.issuperset(word) for word in words):
        return []
    tokens = sorted({token for word in words for token in word})
    occurrences = read_occurrences(session_pk, tokens, before_turn=turn, limit=MAX_OCCURRENCES)
    if not needs_older_turns(text, words, occurrences, floor=floor):
        return []
    places: list[list[int]] = []
    hits = search_session(session_pk, make_query(text), limit=MAX_HITS, before_turn=floor).hits
    for hit in hits:
        if hit.score < MIN_SCORE_SHARE * hits[0].score:
            break
        neighbours = [place for place in places if any(abs(hit.turn - turn) == 1 for turn in place)]
        if neighbours:
            neighbours[0].append(hit.turn)
        elif len(places) < MAX_PLACES:
            places.append([hit.turn])
    return sorted(turn for place in places for turn in place)


def read_telling_words(text: str) -> list[Word]:
    """Return at most MAX_WORDS distinct words, with the less common ones first."""
    telling_words: dict[Word, None] = {}
    for match in find_words(text):
        tokens = [token for token in tokens_of_word(match[0]) if token not in STOP_TOKENS]
        if tokens:
            telling_words[tuple(dict.fromkeys(tokens))] = None
    return sorted(telling_words, key=COMMON.issuperset)[:MAX_WORDS]


def needs_older_turns(
    text: str, words: Sequence[Word], occurrences: Mapping[str, Sequence[int]], *, floor: int
) -> bool:
    """Return whether a message with these words is about turns below the floor.

    ``occurrences`` has the turns that contain each token.
    """
    below: dict[int, float] = defaultdict(float)
    window: dict[int, float] = defaultdict(float)
    rare_words: dict[int, int] = defaultdict(int)  # The number of less common words, by turn
    total = known_weight = 0.0
    for word in words:
        turns = {turn for token in word for turn in occurrences.get(token, ())}
        older_turns = sum(1 for turn in turns if turn < floor)
        is_often = any(len(occurrences.get(token, ())) >= MAX_OCCURRENCES for token in word)
        rarity = 0.0
        if not is_often:
            rarity = max(0.0, math.log(floor / (older_turns + 1)) / math.log(floor))
        is_common = COMMON.issuperset(word)
        weight = rarity * COMMON_WEIGHT if is_common else rarity
        total += weight
        known_weight += weight if older_turns else 0.0
        for turn in turns:
            (below if turn < floor else window)[turn] += weight
            rare_words[turn] += not is_common
    if max(window.values(), default=0.0) >= MAX_KNOWN_SHARE * total:
        return False
    is_asking = ASKING.search(text) is not None
    best = max(below.values(), default=0.0)
    if is_asking and _REFERRING.search(_HOW_TO.sub(" ", text)):
        share, min_weight = REFERRING_QUESTION
        if known_weight >= max(min_weight, share * total):
            return True
    if best < (MIN_QUESTION_SHARE if is_asking else MIN_STATEMENT_SHARE) * total:
        return False
    share, min_weight = QUESTION
    if is_asking and known_weight >= max(min_weight, share * total):
        return True
    min_weight, min_rare, max_turns = QUESTION_ALONE if is_asking else STATEMENT_ALONE
    chosen = [turn for turn, score in below.items() if score >= MIN_TIE_SHARE * best]
    rare = max((rare_words[turn] for turn in chosen), default=0)
    return best >= min_weight and rare >= min_rare and len(chosen) <= max_turns


# The recall hint: one line for the model that names turns outside the window. The list is that of
# seed 000.
PHRASES = (
    *("like we discussed", "as before", "remember when", "go back to", "that file", "that error"),
    *("that function", "what we did", "earlier", "the previous", "as I said", "like I mentioned"),
    *("that thing", "we already"),
)

# Phrases that may also refer to something in the window, and the word for what they refer to.
POINTING = {"that file": "file", "that error": "error", "that function": "function"}

# The wording is that of seed 000.
PHRASE_HINT = (
    "[System: The user may be referencing earlier conversation that is no longer in your"
    " context window. Use the conversation_recall tool to search for relevant context before"
    " proceeding.]"
)

_PHRASE = re.compile(
    rf"\b(?:{'|'.join(re.escape(phrase.lower()) for phrase in PHRASES)})\b", re.IGNORECASE
)


def find_hint(session_pk: int, text: str, *, floor: int, turn: int) -> str:
    """Return a line about turns below ``floor`` that the person's message seems to be about.

    ``text`` is the message in ``turn``. The line is empty if there are no such turns. A bounded
    number of rows is read.
    """
    if floor <= 1:
        return ""
    related = find_related_turns(session_pk, text, floor=floor, turn=turn)
    rewound = read_rewound(session_pk, "turn") if related else []
    turns = [turn for turn in related if not are_within(turn, rewound)]
    if turns:
        return name_turns(turns)
    match = _PHRASE.search(text)
    if match is None:
        return ""
    if noun := POINTING.get(match[0].lower()):
        # The phrase may refer to something that the window mentions.
        [token] = tokens_of_word(noun)
        occurrences = read_occurrences(session_pk, [token], before_turn=turn, limit=1)
        if any(number >= floor for number in occurrences.get(token, ())):
            return ""
    return PHRASE_HINT


def name_turns(turns: list[int]) -> str:
    named, is_one = ", ".join(map(str, turns)), len(turns) == 1
    return (
        f"[Archive: turn{'' if is_one else 's'} {named} (outside this window)"
        f" seem{'s' if is_one else ''} related; conversation_recall range shows"
        f" {'it' if is_one else 'them'}.]"
    )
