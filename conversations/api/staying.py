"""Requests that last: they hold no connection to the database, and end for those who
lose the right to what they read.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.http import HttpRequest

from conversations.archive.rights import READ
from conversations.archive.standing import OpenPage, read_standing
from conversations.archive.tokens import is_working
from conversations.models import Session
from conversations.web.access import AccessContext, SignedOut, get_session_for, recheck_access

from .auth import caller_of, visit_of
from .middleware import ApiCaller


@sync_to_async
def free_connection() -> None:
    """Let go of the database for as long as the request may last: what comes is read by
    the few threads that do so for all."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def recheck_of(request: HttpRequest, session: Session) -> Callable[[], None]:
    """What asks again whether the caller may still read the session. It raises
    SignedOut, NotFound or NotPermitted."""
    caller = caller_of(request)
    if caller.token_pk is not None:
        return partial(_recheck_token, visit_of(request), caller, session)
    place = OpenPage(request.session.session_key or "", caller.user.pk, session.workspace_id)
    earlier = await sync_to_async(read_standing)(place)
    return partial(recheck_access, place, session.workspace, to=READ, earlier=earlier)


def _recheck_token(visit: AccessContext, caller: ApiCaller, session: Session) -> None:
    user = User.objects.filter(pk=caller.user.pk, is_active=True).first()
    if user is None or caller.token_pk is None or not is_working(caller.token_pk):
        raise SignedOut("The token works no more.")
    get_session_for(replace(visit, user=user), session.uuid)
