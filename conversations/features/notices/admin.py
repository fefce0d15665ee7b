from django.utils.translation import gettext_lazy

from conversations.admin import Table, choice_filter, show_tables

from .models import MESSAGE_STATES, NOTICE_EVENTS

show_tables(
    {
        "conversations.NoticeChoice": Table("user finished failed asks by_email", first="user"),
        # The address and the keys are left out, because anybody who has them can send a push.
        "conversations.PushSubscription": Table(
            "uuid site created_at", left_out="endpoint endpoint_digest p256dh auth"
        ),
        "conversations.MutedSession": Table("user session", says_something=False),
        "conversations.SessionView": Table(
            "user session seen_at watched_until", says_something=False
        ),
        "conversations.Notice": Table(
            "uuid user session event created_at",
            filters=(choice_filter("event", gettext_lazy("event"), NOTICE_EVENTS),),
            says_something=False,
        ),
        "conversations.NoticeMessage": Table(
            "notice subscription state attempts next_at sent_at shown_at",
            filters=(choice_filter("state", gettext_lazy("state"), MESSAGE_STATES),),
        ),
    }
)
