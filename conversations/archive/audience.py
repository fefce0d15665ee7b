"""Which sessions can be quoted in another one: only those that everybody who can read the
one can read too.

Members of a workspace read all of its sessions, so those that only members read quote each
other. What is said in a session of a channel or of a program also reaches people whom
nobody here knows: who writes in a channel of Discord, who is served by a program. Such a
session quotes itself only, unless the workspace counts those people as its members.
"""

from django.db import transaction
from django.db.models import Q, QuerySet

from conversations.domain.audit import RECALL
from conversations.domain.keys import MEMBER_CHANNELS
from conversations.models import Session, Workspace

from .audit import AuditEvent, AuditOrigin, record
from .rights import find_person, sessions_as_member

# A key counts whatever the channel says, since callers of the API choose that; so does the
# key that a session had, since its program has read the session.
FOR_MEMBERS = Q(key=None, former_key=None, channel__in=sorted(MEMBER_CHANNELS))
"""Of sessions whose answers are read by members of the workspace alone."""


def quotable_sessions(session_pk: int, user_pk: int | None) -> QuerySet[Session]:
    """The other sessions that can be quoted in this one while it answers this person.
    The only way by which a tool or the window reaches another session."""
    quoting = Session.objects.filter(pk=session_pk).filter(
        FOR_MEMBERS | Q(workspace__channel_recall=Workspace.ChannelRecall.WORKSPACE)
    )
    sessions = sessions_as_member(find_person(user_pk))
    return sessions.filter(workspace__in=quoting.values("workspace")).exclude(pk=session_pk)


def change_channel_recall(
    workspace: Workspace, *, channel_recall: str, origin: AuditOrigin
) -> None:
    """Set what sessions of channels and programs can quote; entered in the audit log where
    it changes. It holds from the next call on."""
    with transaction.atomic():
        known = Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)
        before = known.channel_recall
        if before == channel_recall:
            return
        Workspace.objects.filter(pk=workspace.pk).update(channel_recall=channel_recall)
        metadata = {"before": before, "after": channel_recall}
        record(origin, AuditEvent(action=RECALL, workspace=workspace.slug, metadata=metadata))
