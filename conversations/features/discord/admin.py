from conversations.admin import Table, show_tables

show_tables(
    {
        "conversations.ChannelPlace": Table(
            "key workspace address taken updated_at", filters=("workspace",), search="key"
        ),
        "conversations.ChannelReply": Table(
            "session source author_name created_at done_at", says_something=False
        ),
    }
)
