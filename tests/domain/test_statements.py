"""Which sentences of a person are decisions: few, but right."""

import pytest

from conversations.domain.session_state.statements import MAX_DECISIONS_IN_MESSAGE, find_decisions

DECISIONS = """\
Never use an ORM, raw SQL only.
never commit directly to main
Never, ever push secrets.
Always run the tests before you commit!
always answer in German
Please always reply in French
You must never delete the migrations folder
you should always pin versions
Make sure to always close the file handle
We use PostgreSQL 16 in production.
we're using pnpm, not npm
We don't use semicolons in this project
We never store plain passwords.
We only support Python 3.13 here
We decided to go with Postgres.
We've decided against microservices
I decided to keep the old API for now
The team has agreed on trunk-based development
It was decided that invoices stay in euros
Decided to go with tabs.
Decision: tokens expire after 15 minutes
Rule: one class per file
Let's go with the second option, JWT in a cookie
let's use SQLite for the tests
we'll go with argon2 for hashing
From now on answer briefly
from now on, all times are UTC
Going forward, every endpoint needs a docstring
The API must not return HTML.
Handlers must never block the event loop
Migrations must not be edited after release
Tests should never hit the network
must not touch the vendor folder
We must not use floats for money
You must not delete the logs
don't ever force push
Ok, never touch the vendor folder
And also: always use UTC.
Important: never log the token.
Please write commit messages in English from now on.
- never use `eval`
2. Always quote paths
""".splitlines()

ORDINARY = """\
Never mind.
never mind, it works now
Never heard of it.
Never seen that error before
Never again...
I never use the debugger
I always forget the syntax
You always forget the imports
He never answered my mail
It never worked on my machine
It always fails on CI
always the same error
Always nice to see tests pass
Always a pleasure
Almost always the cache is the problem
We always get a timeout there
We never got this to work
We never had this problem before
This must not happen again?
It must not have been saved
That must not be right
There must be a better way
It must be the cache
Should we always use UTC?
Do we use Redis anywhere?
Why do we never close the connection?
Can you always run the tests before committing?
What if we decided to drop it
If we use Redis, we never lose a job
When we use threads, it deadlocks
Unless we decided otherwise, leave it
Maybe we use Postgres instead
We use Redis, I think
We use it a lot
We use this in three places
We used to use Redis
We used Redis for that
We could use Redis
we should talk about what we use
I haven't decided yet
We haven't decided on a database
Have you decided on a name?
We decided nothing yet
We were deciding on lunch
Undecided about the colour
Let's go!
Let's go with that
Let's go with it then
let's see what happens
Let's use this
Let's use it
I wonder whether we should always use UTC
The docs say "never use eval in templates"
He said “always use tabs” and left
> never use an ORM
    never = always_use(x)
`never use eval` is what the linter prints
ERROR: must not be null
ValueError: name must not be empty
2026-01-01 10:00:00 we use a fallback
$ echo "always run"
The error says that the name must not be empty
Fix the bug in the parser
Please add a test for the empty list
Thanks, that works
How is the weather today?
Write a poem about never giving up
Tell me about the rule of three
My decision tree is too deep
The agreement was signed
We used the wrong key
As always, run the linter
Nevertheless, go on
Was it always like this?
Never mind the tests, just commit
The rules: read the file
must not be null
Should never happen
We use a lot of memory there
We use too many threads
Let's go to lunch
Never give up!
Never let me down
Name must not be null
Explain why strings must not be compared with ==
""".splitlines()


def test_it_finds_what_a_person_states() -> None:
    for text in DECISIONS:
        assert len(find_decisions(text)) == 1, text


def test_it_leaves_ordinary_sentences_alone() -> None:
    for text in ORDINARY:
        assert find_decisions(text) == (), text


def test_it_takes_the_sentence_out_of_its_message() -> None:
    text = "The build is red again. We use uv, not pip! Could you look?\n\n- never pin by hand"
    assert find_decisions(text) == ("We use uv, not pip", "never pin by hand")


def test_what_is_pasted_is_not_said() -> None:
    text = "Look at this:\n```\nnever use eval\n```\n~~~\nalways use tabs\n"
    assert find_decisions(text) == ()


def test_what_a_program_put_into_a_message_is_not_said() -> None:
    text = "<system-reminder>\nAlways use tabs.\n</system-reminder>\nNever use eval."
    assert find_decisions(text) == ("Never use eval",)
    assert find_decisions("<note>Always use tabs</note>\nNever use eval.") == ("Never use eval",)


def test_of_a_long_paste_only_the_person_s_words_count() -> None:
    paste = "\n".join(f"Always write line {n}" for n in range(60))
    text = f"Never change this file.\n\n{paste}\n\nFrom now on read it first."
    assert find_decisions(text) == ("Never change this file", "From now on read it first")


def test_a_message_gives_a_handful_at_most() -> None:
    assert (
        len(find_decisions("\n".join(f"Never use tool {n}." for n in range(30))))
        == MAX_DECISIONS_IN_MESSAGE
    )


def test_what_is_said_twice_counts_once() -> None:
    assert find_decisions("Never use eval. never use eval.") == ("Never use eval",)


def test_a_long_sentence_is_cut_to_a_line() -> None:
    [text] = find_decisions(f"Never use {'very ' * 40}long names")
    assert len(text) == 160
    assert find_decisions(f"Never use {'very ' * 400}long names") == ()


@pytest.mark.parametrize(
    "text",
    ["never " * 3000, "we use " + "a'" * 5000, '"' * 9000 + " never", "`" * 9000, "x must " * 1500],
)
def test_strange_texts_are_read_in_little_time(text: str) -> None:
    assert len(find_decisions(text)) <= MAX_DECISIONS_IN_MESSAGE
