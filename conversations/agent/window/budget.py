"""The token budget of a window, and the choice of turns and cache breakpoints within it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from conversations.domain.attachments import Block
from conversations.domain.turns import ASSISTANT, USER, StoredTurn
from conversations.domain.windows import WindowRules

from .messages import Message, MessageCaps, WindowPiece

# Shares of the input that are left free because tokens are only estimated: after the provider has
# reported its own count, and before.
KNOWN_MARGIN_SHARE, UNKNOWN_MARGIN_SHARE = 0.05, 0.15

# Bounds of the ratio. A ratio outside them is taken to be a reporting error.
MIN_RATIO, MAX_RATIO = 0.5, 4.0

# An eighth of the limit, or the model's maximum output if that is less, is reserved for the answer.
# A long answer gets more if the prompt leaves room.
RESERVED_DIVISOR = 8

# The minimum budget of the history, even if the system prompt is enormous: a share of the budget,
# or in small windows a number of estimated tokens (a message of 500 words), but at most two thirds
# of the budget.
MIN_HISTORY_SHARE, MIN_HISTORY_TOKENS, MAX_HISTORY_SHARE = 0.2, 900, 2 / 3

MAX_FRAME_TOKENS = 200  # Tokens of the texts around state, summary and omitted turns

# The provider caches tools and system prompt first, so they must not change with every reported
# ratio. Their budget uses the ratio rounded up to the next of these values.
STEADY_RATIOS = (0.9, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBudget:
    """The token limits of one window.

    ``limit`` is the number of tokens of input and answer that the model accepts, and ``reserve``
    the part of it that is reserved for the answer. ``tokens`` is the limit of the whole prompt in
    estimated tokens. ``ratio`` is the number of real tokens per estimated token.
    """

    limit: int
    reserve: int
    tokens: int
    ratio: float
    margin: float
    max_output: int

    def for_history(self, *, fixed: int) -> int:
        """Return the tokens that are left for the history beside ``fixed`` estimated tokens."""
        return max(self.tokens - fixed, least_history(self.tokens))

    @property
    def for_parts(self) -> int:
        """Return the tokens that are left beside the history's minimum."""
        return room_beside(self.tokens)

    @property
    def for_prompt(self) -> int:
        """Return the same as ``for_parts``, with a steady ratio, for tools and system prompt."""
        exact = self.ratio * (1 + self.margin)
        steady = next((ratio for ratio in STEADY_RATIOS if exact <= ratio), exact)
        return room_beside(int(self.tokens * exact / steady))

    def max_tokens(self, *, estimated: int) -> int:
        """Return the maximum length of the answer to such a prompt, in the provider's tokens."""
        prompt = int(estimated * self.ratio * (1 + self.margin))
        return max(min(self.max_output, self.limit - prompt), min(self.reserve, self.max_output))


def least_history(tokens: int) -> int:
    max_tokens = int(tokens * MAX_HISTORY_SHARE)
    return min(max_tokens, max(MIN_HISTORY_TOKENS, int(tokens * MIN_HISTORY_SHARE)))


def frames_of(tokens: int) -> int:
    return min(MAX_FRAME_TOKENS, tokens // 16)


def room_beside(tokens: int) -> int:
    """Return the part of a prompt's tokens that is not for the history and the frames."""
    return tokens - least_history(tokens) - frames_of(tokens)


def make_budget(*, limit: int, max_output: int, ratio: float, share: float = 1.0) -> WindowBudget:
    """Make the budget of a window.

    ``ratio`` is 0 if it is not known yet. A ``share`` below 1 makes a shorter window, for example
    after the provider has rejected one as too long.
    """
    margin = KNOWN_MARGIN_SHARE if ratio else UNKNOWN_MARGIN_SHARE
    bounded = min(MAX_RATIO, max(MIN_RATIO, ratio)) if ratio else 1.0
    reserve = min(max_output, limit // RESERVED_DIVISOR)
    tokens = int((limit - reserve) * (1 - margin) * share / bounded)
    return WindowBudget(
        limit=limit,
        reserve=reserve,
        tokens=max(100, tokens),
        ratio=bounded,
        margin=margin,
        max_output=max_output,
    )


def make_caps(budget: WindowBudget, rules: WindowRules) -> MessageCaps:
    """Return the caps for the turns of a window.

    They depend on the limit alone and not on the ratio, which changes with every answer. A turn has
    to have the same bytes in every call, or the cache is lost.
    """
    room = budget.limit - budget.reserve
    return MessageCaps(
        message=int(room * rules.message_share),
        result=int(room * rules.result_share),
        attached=room,
        skill=room,
    )


# The number of blocks before a breakpoint in which the provider looks for cached content
LOOK_BACK_BLOCKS = 20
# The distance of the intermediate breakpoint from the end of the history, less than the look-back.
SPACING_BLOCKS = LOOK_BACK_BLOCKS - 2

type Place = tuple[str, int, int]


def mark_cache(
    system: list[Block], messages: list[Message], *, lifetime: str
) -> tuple[list[Block], list[Message], list[Place]]:
    """Return copies with the cache breakpoints set, and the places of the breakpoints.

    A place is ``("system", block, 0)`` or ``("messages", message, block)``. Breakpoints are set
    behind the system prompt, at the ends of the person's last two messages, and at one place in
    between if the history after the first of these is long. ``lifetime`` is ``5m``, ``1h`` or
    ``off``.
    """
    if lifetime == "off":
        return system, messages, []
    control = {"type": "ephemeral"} | ({"ttl": "1h"} if lifetime == "1h" else {})
    places: list[Place] = []
    if system:
        system = [*system[:-1], system[-1] | {"cache_control": control}]
        places.append(("system", len(system) - 1, 0))
    people = {index for index, message in enumerate(messages) if message["role"] == "user"}
    ends = [(index, len(messages[index]["content"]) - 1) for index in sorted(people)[-2:]]
    first = ends[0] if len(ends) == 2 else (0, 0)
    after = [
        (index, block)
        for index in range(first[0], len(messages))
        for block in range(len(messages[index]["content"]))
        if (index, block) > first
    ]
    if len(after) > SPACING_BLOCKS:
        # From the last breakpoint, the provider's look-back would not reach the one before it.
        ends[1:1] = [place for place in after[:-SPACING_BLOCKS] if place[0] in people][-1:]
    messages = list(messages)
    for index, block in ends:
        content = list(messages[index]["content"])
        content[block] = content[block] | {"cache_control": control}
        messages[index] = messages[index] | {"content": content}
        places.append(("messages", index, block))
    return system, messages, places


MIN_CAP_TOKENS = 8  # Caps are halved until they reach this value

type MakePiece = Callable[[StoredTurn, MessageCaps], WindowPiece]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChoice:
    """The turns chosen for a window.

    ``pieces`` are in order, starting at the floor. ``head`` is a message below the floor that is
    given too. ``tight`` has the lower caps that were used if a single exchange was too long.
    """

    pieces: list[WindowPiece]
    floor: int
    head: WindowPiece | None = None
    tight: MessageCaps | None = None


def choose_turns(
    newest_first: Iterable[StoredTurn],
    *,
    floor: int,
    budget: int,
    rules: WindowRules,
    caps: MessageCaps,
    make: MakePiece,
    find_head: Callable[[int], StoredTurn | None],
) -> TurnChoice:
    """Choose the turns that fit into the budget.

    ``newest_first`` are the active turns down to the floor. ``find_head`` returns the last message
    of a person before a turn.

    The floor stays until the high mark is exceeded, and then moves up to about the low mark. So
    most requests begin like the one before, which the provider has cached. For example, exchanges
    of 100, 450, 300 and 250 tokens exceed a high mark of 900. If the low mark is 500 and
    ``keep_recent`` is 2, the new floor is at the third exchange, because the last two cost less
    than 700, the middle of the marks. If a single exchange of 2,000 tokens follows, the floor moves
    into it: to the first of its answers from which it costs at most 500 together with the person's
    message, the new head.
    """
    low, high = budget * rules.low_water, budget * rules.high_water
    turns: list[StoredTurn] = []
    pieces: list[WindowPiece] = []
    cost = 0
    # Where a window can start: at a message of a person, or in an exchange that is too long also at
    # an answer. Each place has the cost and the number of turns from it to the end.
    exchanges: list[tuple[int, int]] = []
    units: list[tuple[int, int]] = []
    for turn in newest_first:
        piece = make(turn, caps)
        turns.append(turn)
        pieces.append(piece)
        cost += piece.cost
        if turn.role == USER:
            exchanges.append((cost, len(turns)))
        if turn.role in (USER, ASSISTANT):
            units.append((cost, len(turns)))
        if cost > high and units:
            break
    else:
        person_turn = find_head(turns[-1].number) if turns and turns[-1].role != USER else None
        head = make(person_turn, caps) if person_turn else None
        if cost + (head.cost if head else 0) <= high or not units:
            return TurnChoice(pieces=pieces[::-1], floor=floor, head=head)
    # A few recent exchanges may take more room than old ones, and the newest may take all of it.
    recent = exchanges[: rules.keep_recent]
    count = max(_count_within(low, exchanges), _count_within((low + high) / 2, recent))
    count = count or _count_within(high, exchanges[:1])
    if count:
        return _fit(turns[:count][::-1], None, budget, caps, make)
    # Even the newest exchange is too long. Keep its message and the turns from one of its answers
    # on.
    person_turn = turns[exchanges[0][1] - 1] if exchanges else find_head(turns[-1].number)
    room = low - (make(person_turn, caps).cost if person_turn else 0)
    kept_turns = turns[: _count_within(room, units) or units[0][1]][::-1]
    is_apart = person_turn is not None and person_turn.number < kept_turns[0].number
    return _fit(kept_turns, person_turn if is_apart else None, budget, caps, make)


def _count_within(limit: float, starts: list[tuple[int, int]]) -> int:
    """Return the number of turns from the earliest start that costs at most ``limit``, or 0."""
    return max((count for cost, count in starts if cost <= limit), default=0)


def _fit(
    turns: list[StoredTurn],
    head: StoredTurn | None,
    budget: int,
    caps: MessageCaps,
    make: MakePiece,
) -> TurnChoice:
    """Shorten the pieces until they fit the budget, or cannot be shortened further."""
    for tight in _tighten(caps):
        pieces = [make(turn, tight) for turn in turns]
        first = make(head, tight) if head else None
        if sum(p.cost for p in pieces) + (first.cost if first else 0) <= budget:
            break
    return TurnChoice(
        pieces=pieces, floor=turns[0].number, head=first, tight=tight if tight != caps else None
    )


def _tighten(caps: MessageCaps) -> Iterator[MessageCaps]:
    """Yield the caps and ever lower ones.

    Tool results are shortened first. Then attachments are left out, and then skills and messages
    are shortened.
    """
    yield caps
    for name in ("result", "attached", "skill", "message"):
        while (cap := getattr(caps, name)) > MIN_CAP_TOKENS:
            caps = replace(caps, **{name: cap // 2})
            yield caps
