from conversations.admin import Table, show_tables

show_tables(
    {"conversations.Hold": Table("__str__ session workspace reason created_at released_at")}
)
