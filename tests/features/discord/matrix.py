from django.utils import timezone

from conversations.features.discord.models import ChannelPlace, ChannelReply
from conversations.models import Run, Session

SAYS_NOTHING = {ChannelReply}


def stock(session: Session, run: Run) -> None:
    now = timezone.now()
    ChannelPlace.objects.create(
        workspace=session.workspace,
        key=f"discord:dm:{session.pk}",
        address=1,
        taken=1,
        updated_at=now,
    )
    ChannelReply.objects.create(session=session, run=run, address=1, source=1, created_at=now)
