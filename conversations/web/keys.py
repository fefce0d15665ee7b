"""The keys, and the page that lists them with the commands."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from conversations.archive.preferences import read_preferences

from .commands import COMMANDS
from .pages import person, render_page

type Keys = tuple[tuple[tuple[str, ...], str], ...]

KEYS: tuple[tuple[str, Keys], ...] = (
    (
        "Writing",
        (
            (("Enter",), "Send the message"),
            (("Shift", "Enter"), "New line"),
            (("/",), "Commands, where the message begins; the message, from elsewhere"),
            (("@",), "Files of the workspace"),
            (("Esc",), "Stop the answer; leave a list, the editor or a menu"),
        ),
    ),
    (
        "Going places",
        (
            (("Ctrl", "K"), "Sessions, commands and pages"),
            (("Ctrl", "Shift", "O"), "New session"),
            (("Alt", "↑", "↓"), "Session above, session below"),
            (("j", "k"), "Next row, previous row"),
            (("f",), "Find in this session; Enter goes to the next hit"),
            (("?",), "This list"),
        ),
    ),
)
"""Groups of keys with what they do."""

ENTER_BREAKS: Keys = ((("Ctrl", "Enter"), "Send the message"), (("Enter",), "New line"))
"""The first two, for whoever prefers that."""


@login_required
@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    """Commands and keys: a page, and what the chat shows in a dialog."""
    keys = KEYS
    if read_preferences(person(request).pk).enter == "break":
        (writing, usual), *others = KEYS
        keys = ((writing, ENTER_BREAKS + usual[2:]), *others)
    return render_page(request, "help.html", "lists", {"commands": COMMANDS, "keys": keys})
