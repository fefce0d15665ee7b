from conversations.admin import Table, show_tables

show_tables(
    {
        "conversations.ShareLink": Table(
            "session from_turn to_turn with_tools created_by created_at expires_at revoked_at"
            " opened_count"
        ),
        "conversations.FileLink": Table(
            "workspace path created_by created_at expires_at revoked_at opened_count"
        ),
    }
)
