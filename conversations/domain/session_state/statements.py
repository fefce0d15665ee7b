"""Decisions that a person states in a message: few, but right.

Only sentences that begin as a rule or a decision count ("never …", "always …", "we
use …", "we decided …", "let's go with …", "from now on …", "… must not …"). Not
questions, doubts and stories, and nothing quoted or pasted. The rules are made for
English.
"""

import re
from collections.abc import Iterator

from conversations.domain.text import one_line

from .values import ITEM_CHARS

MOST, LONGEST, SHORTEST_WORDS = 5, 400, 3
"""Decisions of one message; characters and words of one sentence."""

SCANNED_CHARS, LONG_LINES, SHORT_PARAGRAPH = 10_000, 40, 6
"""A message of more lines is mostly pasted: only its first and last paragraph
count, and only if they are short."""

_VERBS = """
accept access add address allow answer apply ask assign assume avoid back base batch be begin
block break bring build bump cache call catch change charge check cite clean close combine
commit compare compile compute configure confirm connect convert copy cover create cut debug
declare deduplicate default define delete deliver depend deploy describe disable disclose
discuss display document downgrade download drop echo edit email embed emit enable encode
encrypt enforce ensure escape exclude execute explain export expose extend fall fetch fill
filter fix flush follow force fork format generate give go group handle hard-code hardcode hide
hold ignore implement import include indent inject inline insert install interpolate interrupt
introduce invent invoke keep label leave let limit link lint list load lock log lower make mark
match measure mention merge migrate mix mock modify mount mutate name nest normalise normalize
omit open order output overwrite own paginate parse pass paste patch pay persist pick pin place
post prefer prefix prepare preserve print process produce profile prompt provide publish pull
purge push put query quote raise re-run read rebase rebuild record redirect refer reference
refresh reject release rely remove rename render repeat replace reply report require rerun reset
resolve respond restart restore retry return reuse revert review rewrite rotate round route run
sanitise sanitize save schedule scroll seed send separate serialise serialize serve set share
ship show sign silence skip sort specify split squash stage start state stop store stream strip
submit suggest summarise summarize support suppress swallow switch sync tag take target test
throw touch track translate trim truncate trust try turn type uninstall unwrap update upgrade
upload use validate vendor verify version wait warn wrap write
"""
_LONGEST_FIRST = sorted(_VERBS.split(), key=lambda verb: (-len(verb), verb))
_VERB = (
    r"(?!give up\b|let (?:me|us)\b)"
    rf"(?:{'|'.join(_LONGEST_FIRST)})\b(?![-'’])"
)

_FILLER = (
    r"(?:(?:ok(?:ay)?|yes|no|right|so|and|but|also|then|well|alright|great|good|important|note"
    r"|remember|reminder|nb|ps|fyi|btw|by the way|one more thing)\b[\s,:;.!–—-]*)*"
)
_PLEASE = (
    r"(?:please,?\s+|(?:make|be) sure (?:to|that you|you)\s+|remember(?: to)?:?\s+"
    r"|(?:you|we|everyone|all of us)\s+(?:must|should|shall|need to|have to)\s+"
    r"|i(?:'d like| want| need) you to\s+)*"
)
_THING = (
    r"(?!(?:it|this|that|them|these|those|him|her|some|to|up|a lot|lots|too|so"
    r"|more|less)\b)\S+"
)
_INFERRED = (
    r"(?:have|know|care|mind|happen|occur|matter|be (?:\w+ing|a|an|the|that|so|very"
    r"|true|right|easy|empty|null|blank|zero|negative|none|nil|undefined))\b"
)
"""After "must not": a guess about how things are, or an error message."""
_REPORTED = (
    r"(?:that|why|how|if|because|says?|said|means?|explain|tell|know|think|check|show|find"
    r"|whether|when|error|warning)\b"
)
_FORBIDS = r"(?:must(?: not|n['’]t| never)|should never)"

_RULES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_PLEASE}(?:do not |don['’]t |not )?(?:never|always)(?:,? ever)?,? {_VERB}",
        rf"(?:please )?(?:do not|don['’]t) ever {_VERB}",
        rf"we (?:never|always|only(?: ever)?) {_VERB}",
        rf"we(?:['’]ll| will| do| shall)? (?:use|be using) {_THING}",
        rf"we(?:['’]re| are) (?:using|going with|sticking with|sticking to) {_THING}",
        rf"we (?:do not|don['’]t|won['’]t|will not) use {_THING}",
        r"(?:we|i|the team|it was|it is|it['’]s)(?:['’]ve| have| has| had| just| been| already)*"
        r" (?:decided|agreed)"
        r" (?:to|on|that|against|not to|in favou?r of|we|never|always|the)\b",
        r"decided (?:to|on|that|against|not to|in favou?r of)\b",
        r"(?:decision|decided|rule|constraint|convention)(?: made)?: *\S",
        rf"(?:let['’]?s|let us|we['’]ll|we will|we shall) (?:go with|stick with|stick to) {_THING}",
        rf"let['’]?s use {_THING}",
        r"(?:from now on|from here on|going forward|from today on)\b",
        rf"(?!(?:it|this|that|there|he|she|they|i|which|who|what)\b)"
        rf"(?:(?!{_REPORTED})[\w`'’./-]+ ){{0,6}}?{_FORBIDS}(?! {_INFERRED}) \w",
    )
]
_HINTED = """
never|always|ever |we use|we'|we’|we are|we will|we shall|we do|we only|must|decided|agreed
|decision|rule|constraint|convention|let's|let’s|lets|let us|now on|here on|today on|going forward
"""
_HINTS = tuple(hint.strip("\n") for hint in _HINTED.split("|"))
"""Some of these is in every sentence that a rule fits: most texts need no closer look."""

_AT_END = re.compile(r"\bfrom (?:now|here) on[.!]*$", re.IGNORECASE)

_DOUBT = re.compile(
    r"\b(?:maybe|perhaps|probably|i (?:think|guess|suppose|believe|assume|wonder|doubt)|not sure"
    r"|unsure|no idea|or not|or should|(?:isn|aren|don|didn|wouldn|shouldn)['’]t (?:it|we|you|they)"
    r"|right\?|hypothetically|for example|e\.g\.|imagine|suppose|pretend|lol|haha|/s)",
    re.IGNORECASE,
)
_STORY = re.compile(
    r"^(?:if|when|whenever|while|once|unless|until|before|after|although|though|because|since"
    r"|as|what|why|how|who|where|which|whether|is|are|was|were|do|does|did|can|could|should"
    r"|would|will|have|has|had|am|may|might)\b(?!,? never\b)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|„[^“\n]*“|(?<!\w)'[^'\n]*\s[^'\n]*'(?!\w)")
_FENCE = re.compile(
    r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_PASTED = re.compile(
    r"^(?:[>|<#{}\[\]/\\@+=$%;]|\s{4}|\t|[-=*_]{3,}|\d{4}-\d\d|\d+:\d\d|\[?\d{1,2}[/:]"
    r"|(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FATAL|TRACE|Traceback|File \"|at \S+\()"
    r"|\w+(?:Error|Exception|Warning)\b|[\w.-]+@[\w.-]+[:$#]|--?\w+\s*$|\w+:\s*\{)"
)
_TAG = re.compile(r"\s*<([A-Za-z][\w-]*)>")
_BULLET = re.compile(r"^\s{0,3}(?:[-*+•]|\d{1,2}[.)])\s+(?:\[[ xX]\]\s+)?")
_ENDS = re.compile(r"(?<=[.!?…])[\"')\]]*\s+(?=[\w`\"'“(])|;\s+")
_LEADING = re.compile(_FILLER, re.IGNORECASE)


def find_decisions(text: str) -> tuple[str, ...]:
    """The decisions that this message states, at most five, each on one line of at
    most 160 characters."""
    text = text[:SCANNED_CHARS]
    if not _is_hinted(text):
        return ()
    found: dict[str, str] = {}
    for sentence in _sentences(text):
        decision = _decision(sentence) if _is_hinted(sentence) else ""
        if decision:
            found.setdefault(decision.casefold(), decision)
        if len(found) == MOST:
            break
    return tuple(found.values())


def _is_hinted(text: str) -> bool:
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


def _sentences(text: str) -> Iterator[str]:
    for paragraph in _own_paragraphs(_FENCE.sub("\n\n", text)):
        for line in paragraph:
            yield from _ENDS.split(_BULLET.sub("", line).strip())


def _own_paragraphs(text: str) -> list[list[str]]:
    """The lines that the person wrote, by paragraph."""
    paragraphs: list[list[str]] = [[]]
    count = 0
    for line in _outside_tags(text.splitlines()):
        if line.strip():
            count += 1
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    paragraphs = [lines for lines in paragraphs if lines]
    if count > LONG_LINES:
        ends = paragraphs[:1] + paragraphs[1:][-1:]
        paragraphs = [lines for lines in ends if len(lines) <= SHORT_PARAGRAPH]
    return [[line for line in lines if not _PASTED.match(line)] for lines in paragraphs]


def _outside_tags(lines: list[str]) -> Iterator[str]:
    """Without what programs put between tags that stand on lines of their own."""
    end = ""
    for line in lines:
        if end:
            end = "" if end in line else end
        elif (tag := _TAG.match(line)) and f"</{tag[1]}>" not in line:
            end = f"</{tag[1]}>"
        else:
            yield line


def _decision(sentence: str) -> str:
    if sentence.rstrip("\"')] ").endswith("?") or len(sentence) > LONGEST:
        return ""
    said = sentence[_LEADING.match(sentence).end() :].strip()  # type: ignore[union-attr]
    bare = _QUOTED.sub("…", said)
    if not (any(rule.match(bare) for rule in _RULES) or _AT_END.search(bare)):
        return ""
    if len(bare.split()) < SHORTEST_WORDS or _STORY.match(bare) or _DOUBT.search(bare):
        return ""
    return one_line(said.strip(" *_").rstrip(".!;,: *_"), limit=ITEM_CHARS)
