"""Tables, constraints and small properties. Nothing here writes: see ``archive``."""

from .accounts import SignInLink
from .archive import ChatEvent, JournalGap, PromptText, PurgePermit, Rewind, Turn
from .runs import DraftChunk, ModelCall, Run, ToolCall
from .sessions import Session
from .workspaces import Membership, Workspace

__all__ = [
    "ChatEvent",
    "DraftChunk",
    "JournalGap",
    "Membership",
    "ModelCall",
    "PromptText",
    "PurgePermit",
    "Rewind",
    "Run",
    "Session",
    "SignInLink",
    "ToolCall",
    "Turn",
    "Workspace",
]
