"""Short lists of English words: those without a subject of their own, and forms
that a stemmer does not bring together."""

_STOP = """
    a about above after again all also am an and any are aren as at be because been before being
    below between both but by can could couldn did didn do does doesn doing don down during each
    either else ever few for from further get got had hadn has hasn have haven having he her here
    hers herself him himself his how however i if in into is isn it its itself just let like ll
    many may me might more most much must my myself no nor not of off on once one only or other
    ought our ours ourselves out over own please re same shall she should shouldn so some such
    than that the their theirs them themselves then there these they this those though through to
    too under until up upon us ve very was wasn we were weren what when where whether which while
    who whom whose why will with within won would wouldn yes yet you your yours yourself yourselves
    arent cant couldnt didnt doesnt dont hadnt hasnt havent hes im isnt ive shes shouldnt thats
    theyre theyve wasnt werent weve whats wheres whos wont wouldnt youre youve tell show find
    remember
"""

STOP_WORDS = frozenset(_STOP.split())

_FORMS = """
    arise arose arisen; awake awoke awoken; beat beaten; become became; begin began begun;
    bend bent; bite bit bitten; bleed bled; blow blew blown; break broke broken; breed bred;
    bring brought; build built; burn burnt; buy bought; catch caught; choose chose chosen;
    come came; creep crept; deal dealt; dig dug; draw drew drawn; dream dreamt; drink drank drunk;
    drive drove driven; eat ate eaten; fall fell fallen; feed fed; feel felt; fight fought;
    find found; flee fled; fly flew flown; forbid forbade forbidden; forget forgot forgotten;
    forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given; go went gone;
    grow grew grown; hang hung; hear heard; hide hid hidden; hold held; keep kept; kneel knelt;
    know knew known; lead led; learn learnt; leave left; lend lent; light lit; lose lost;
    make made; mean meant; meet met; pay paid; prove proven; ride rode ridden; ring rang rung;
    rise rose risen; run ran; say said; see saw seen; seek sought; sell sold; send sent; sew sewn;
    shake shook shaken; shine shone; shoot shot; show shown; shrink shrank shrunk; sing sang sung;
    sink sank sunk; sit sat; sleep slept; slide slid; speak spoke spoken; spend spent; spin spun;
    spring sprang sprung; stand stood; steal stole stolen; stick stuck; sting stung;
    strike struck; swear swore sworn; sweep swept; swim swam swum; swing swung; take took taken;
    teach taught; tear tore torn; tell told; think thought; throw threw thrown;
    understand understood; undertake undertook undertaken; wake woke woken; wear wore worn;
    weave wove woven; weep wept; win won; wind wound; withdraw withdrew withdrawn;
    write wrote written; be was were been; do did done; have had;
    child children; man men; woman women; person people; foot feet; tooth teeth; goose geese;
    mouse mice; wife wives; life lives; knife knives; leaf leaves; half halves; wolf wolves;
    shelf shelves; index indices; matrix matrices; vertex vertices; criterion criteria;
    phenomenon phenomena; analysis analyses; crisis crises; thesis theses; hypothesis hypotheses;
    mom mum mother mommy mummy; dad father daddy; kid kids child; movie film; photo photograph;
    one first; two second; three third; four fourth; five fifth; six sixth; seven seventh;
good better best
"""


def _read_forms() -> dict[str, str]:
    groups = [group.split() for group in _FORMS.split(";")]
    return {form: words[0] for words in reversed(groups) for form in words}


IRREGULAR: dict[str, str] = _read_forms()
"""A form, and the first one to the index, of the same word."""
