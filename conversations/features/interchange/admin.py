from django.utils.translation import gettext_lazy

from conversations.admin import Table, choice_filter, show_tables

from .models import STATES as IMPORT_STATES

show_tables(
    {
        "conversations.Import": Table(
            "uuid name workspace user format state created_at",
            filters=(choice_filter("state", gettext_lazy("state"), IMPORT_STATES),),
        )
    }
)
