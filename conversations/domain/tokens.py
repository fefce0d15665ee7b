"""What personal tokens may do: one string by which a program acts as its person."""

PREFIX = "loom_"
"""How every token begins, so that people and scanners know one when they see it."""

READ, WRITE, APPROVE, DELETE, HOOKS, FEED = "read", "write", "approve", "delete", "hooks", "feed"

SCOPES = {
    READ: "read workspaces, sessions and transcripts",
    WRITE: "begin sessions, send messages, change sessions",
    APPROVE: "allow and deny calls of tools",
    DELETE: "order purges",
    HOOKS: "set up webhooks",
    FEED: "read feeds, also by an address that has the token in it",
}
"""Scope → what it is for. A token never gives more than its person may do."""


def missing_scope(scope: str, has: frozenset[str]) -> str:
    """Why that does not suffice; empty where it does."""
    return "" if scope in has else f"The token has no scope “{scope}”."
