"""Which older turns a message is about, if it is plainly about some.

A word says the more the rarer it is among the turns below the floor; words that people use about
anything say little, and those that the window is full of nothing. A turn is strong evidence when it
has most of what the message's words say together, and has more of it than any turn in the window:
what the window holds needs no looking up. A question needs less than a statement, because an order
or a new subject often shares a word with something old.

The constants were tuned on one half of ``tests/context/samples``; ``docs/tools.md`` has the figures
for both halves.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from conversations.archive.rewinds import is_rewound
from conversations.domain.words import find_words, read_tokens, tokens_of_word
from conversations.search.find import read_occurrences
from conversations.search.query import STOP_TOKENS

# Words that people use about anything: to meet one again says little about what is meant.
# Function words are not among them; a search leaves those out anyway.
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


# The part of a message that is looked at, in which it is said what it is about, and the words of it
# that are looked up: first those that are not common.
MAX_CHARS, MAX_WORDS = 600, 10

# Turns with a word, from which on it tells nothing; in long sessions up to one in a hundred.
OFTEN, OFTEN_IN_LONG_SESSIONS = 64, 200

COMMON_SHARE = 0.3  # What a common word says of what another one as rare would

# Turns that are nearly as good as the best are named with it; where there are more than a few, none
# of them is what is meant.
AS_GOOD, MOST_TURNS = 0.9, 3

WINDOW_SHARE = 0.8  # Below this share of the best turn's evidence, the window knows nothing of it

ASKING = re.compile(
    r"^\W*(?:what|which|who|whom|whose|when|where|why|how|did|do|does|is|are|was|were|had|have"
    r"|has|tell)\b|[?？]|\b(?:remind|forg[eo]t|remember|recall)",
    re.IGNORECASE,
)

type Word = tuple[str, ...]  # The tokens of one word as written

# The share of what the message's words say, and the evidence in all, that the best turn has.
QUESTION, QUESTION_BY_ONE_WORD, STATEMENT = (0.45, 0.7), (0.68, 0.7), (0.7, 1.2)


def find_related_turns(session_pk: int, text: str, *, floor: int, turn: int) -> list[int]:
    """The turns below ``floor`` that the message in ``turn`` is about, in order; none unless that
    is plain. One query a word."""
    found_words: dict[Word, None] = {}
    for match in find_words(text[:MAX_CHARS]):
        telling = [token for token in tokens_of_word(match[0]) if token not in STOP_TOKENS]
        if telling:
            found_words[tuple(dict.fromkeys(telling))] = None
    words = sorted(found_words, key=COMMON.issuperset)[:MAX_WORDS]
    if floor <= 1 or all(COMMON.issuperset(word) for word in words):
        return []
    tokens = {token for word in words for token in word}
    often = max(OFTEN, min(floor // 100, OFTEN_IN_LONG_SESSIONS))
    found = read_occurrences(session_pk, sorted(tokens), before_turn=turn, limit=often)
    asks = ASKING.search(text[:MAX_CHARS]) is not None
    return choose_turns(words, found, floor=floor, often=often, asks=asks)


def choose_turns(
    words: Sequence[Word], found: Mapping[str, Sequence[int]], *, floor: int, often: int, asks: bool
) -> list[int]:
    """The turns below the floor with the most evidence, in order, if it is strong; ``found`` has
    the turns with each token."""
    below: dict[int, float] = defaultdict(float)
    window: dict[int, float] = defaultdict(float)
    rare_words: dict[int, int] = defaultdict(int)  # Of each turn, those that are not common
    total = 0.0
    for word in words:
        # Of a word in pieces those that occur count, and all of them as one word
        pieces = [token for token in word if found.get(token)] or list(word)
        weights = {t: _weigh(t, found.get(t, ()), floor=floor, often=often) for t in pieces}
        most, whole = max(weights.values()), sum(weights.values())
        total += most
        rare: set[int] = set()
        for token, weight in weights.items():
            for turn in found.get(token, ()):
                scores = below if turn < floor else window
                scores[turn] += weight * most / whole if whole else 0.0
                if turn < floor and weight and token not in COMMON:
                    rare.add(turn)
        for turn in rare:
            rare_words[turn] += 1
    best = max(below.values(), default=0.0)
    chosen = [turn for turn, score in below.items() if score >= best * AS_GOOD]
    known = max(window.values(), default=0.0)
    if not chosen or len(chosen) > MOST_TURNS or best * WINDOW_SHARE <= known:
        return []
    most_rare = max(rare_words[turn] for turn in chosen)
    share, least = STATEMENT
    if asks:
        share, least = QUESTION if most_rare > 1 else QUESTION_BY_ONE_WORD
    is_strong = best >= least and best >= share * total and most_rare >= (1 if asks else 2)
    return sorted(chosen) if is_strong else []


def _weigh(token: str, turns: Sequence[int], *, floor: int, often: int) -> float:
    """From 0 for what is everywhere to 1 for what was never said below the floor."""
    if len(turns) >= often:
        return 0.0
    count = sum(1 for turn in turns if turn < floor)
    rarity = max(0.0, math.log(floor / (count + 1)) / math.log(floor))
    return rarity * COMMON_SHARE if token in COMMON else rarity


# The recall hint: one line for the model that names turns outside the window. Seed 000's list.
PHRASES = (
    *("like we discussed", "as before", "remember when", "go back to", "that file", "that error"),
    *("that function", "what we did", "earlier", "the previous", "as I said", "like I mentioned"),
    *("that thing", "we already"),
)

# Phrases that may as well mean something in the window, and what they point at.
POINTING = {"that file": "file", "that error": "error", "that function": "function"}

# Seed 000's sentence.
PHRASE_HINT = (
    "[System: The user may be referencing earlier conversation that is no longer in your"
    " context window. Use the conversation_recall tool to search for relevant context before"
    " proceeding.]"
)

_PHRASE = re.compile(
    rf"\b(?:{'|'.join(re.escape(phrase.lower()) for phrase in PHRASES)})\b", re.IGNORECASE
)


def find_hint(session_pk: int, text: str, *, floor: int, turn: int) -> str:
    """A line about turns below ``floor`` that the person's message ``text`` in ``turn`` seems to be
    about; empty when there is none. Reads a bounded number of rows."""
    if floor <= 1:
        return ""
    related = find_related_turns(session_pk, text, floor=floor, turn=turn)
    turns = [number for number in related if not is_rewound(session_pk, number)]
    if turns:
        return name_turns(turns)
    match = _PHRASE.search(text)
    if match is None:
        return ""
    if thing := POINTING.get(match[0].lower()):
        # The window may speak of the thing that the phrase points at.
        [token] = tokens_of_word(thing)
        found = read_occurrences(session_pk, [token], before_turn=turn, limit=1)
        if any(number >= floor for number in found.get(token, ())):
            return ""
    return PHRASE_HINT


def name_turns(turns: list[int]) -> str:
    named, is_one = ", ".join(map(str, turns)), len(turns) == 1
    return (
        f"[Archive: turn{'' if is_one else 's'} {named} (outside this window)"
        f" seem{'s' if is_one else ''} related; conversation_recall range shows"
        f" {'it' if is_one else 'them'}.]"
    )
