"""Words that people use about anything: to meet one again says little about what is
meant. Function words are not among them; a search leaves those out anyway."""

from conversations.domain.words import read_tokens

_WORDS = """
    able accept accordingly actual add address advice agree ahead allow already always answer
    anything anyone approach area article ask available away back bad base basic become begin
    behind believe best better big bit book both box bring build button buy call cancel care
    case catch cause certain change charge check choose clean clear click close code column come
    comment commit common compare complete consider contain content continue copy correct cost
    could count create current cut data date day decide default define delete depend describe
    design detail different difficult discuss document done draft drop early easy edit effect
    empty end enough enter entry error even event every everything exact example except exist
    expect explain extra face fact fail false far fast feature feel field figure file fill final
    fine finish first fit fix folder follow form format forward free friend full function future
    general give go good great group grow guess half hand handle happen happy hard head hear
    heading hello help high hold home hope hour house idea important include information input
    inside instead interest issue item job join keep kind know label language large last late
    layout lead learn least leave left length let letter level life light like limit line link
    list little live load local logic long look lose lot love low main make manage mark match
    matter maybe mean meet mention merge message method middle mind minute miss module moment
    money month morning move name near necessary need new next nice night none normal note
    nothing notice number often old one open option order original output own page pair paper
    paragraph part pass people perfect perhaps person pick piece place plain plan play please
    plus point possible prefer prepare present press pretty previous problem proceed process
    program project provide pull push put question quick quite random range reach read ready
    real reason recent record remove rename repeat replace reply report request require rest
    result return review revert right room row rule run safe same save say second section see
    seem select send sense sentence separate set several share short show side similar simple
    single size skip slow small solution solve someone something soon sort sound source space
    speak split standard start state stay step still stop store story string style subject
    suggest sum summary support suppose sure switch table take talk task tell term test text
    thank thing think third time tiny title today together tomorrow top total touch translate
    true try turn type understand undo update use user usual value version view wait walk want
    watch way week well whole wide win word work world worry would write wrong year yesterday
    yet zero
"""

COMMON = frozenset(token for word in _WORDS.split() for token in read_tokens(word))
