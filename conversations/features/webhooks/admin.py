from django.utils.translation import gettext_lazy

from conversations.admin import Table, choice_filter, show_tables

from .models import DELIVERY_STATES

show_tables(
    {
        # The address is left out, because a part of it may be a secret.
        "conversations.Webhook": Table(
            "host workspace is_active failing_since created_by created_at",
            first="host",
            left_out="url",
        ),
        "conversations.Delivery": Table(
            "uuid webhook session event state attempts created_at",
            filters=(choice_filter("state", gettext_lazy("state"), DELIVERY_STATES),),
        ),
    }
)
