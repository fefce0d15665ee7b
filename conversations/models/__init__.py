"""Tables, constraints and small properties. Nothing here writes: see ``archive``."""

from .accounts import Device, Invitation, Preferences, SignInLink
from .archive import ChatEvent, JournalGap, PromptText, PurgePermit, Rewind, Turn
from .audit import AuditEntry, AuditHead
from .channels import ChannelPlace, ChannelReply
from .context import Compaction, SessionSkill
from .hooks import Delivery, Webhook
from .imports import Import
from .retention import Hold, PurgedContent, PurgeOrder, Receipt
from .review import ReviewFlag, ReviewMark, ReviewNote
from .runs import BROKEN, DraftChunk, ModelCall, Run, ToolCall
from .search import SearchEntry, SearchProgress
from .sessions import UNINDEXED, UNREVIEWED, Session
from .sharing import ShareLink
from .states import StateCheckpoint
from .tokens import ApiAnswer, ApiToken
from .tools import Attachment, FileChange, Revert, ToolPermission
from .usage import Budget, BudgetWarning, UsageDay, UsageTotal
from .workspaces import Membership, Workspace, WorkspaceGroup

__all__ = [
    "BROKEN",
    "UNINDEXED",
    "UNREVIEWED",
    "ApiAnswer",
    "ApiToken",
    "Attachment",
    "AuditEntry",
    "AuditHead",
    "Budget",
    "BudgetWarning",
    "ChannelPlace",
    "ChannelReply",
    "ChatEvent",
    "Compaction",
    "Delivery",
    "Device",
    "DraftChunk",
    "FileChange",
    "Hold",
    "Import",
    "Invitation",
    "JournalGap",
    "Membership",
    "ModelCall",
    "Preferences",
    "PromptText",
    "PurgeOrder",
    "PurgePermit",
    "PurgedContent",
    "Receipt",
    "Revert",
    "ReviewFlag",
    "ReviewMark",
    "ReviewNote",
    "Rewind",
    "Run",
    "SearchEntry",
    "SearchProgress",
    "Session",
    "SessionSkill",
    "ShareLink",
    "SignInLink",
    "StateCheckpoint",
    "ToolCall",
    "ToolPermission",
    "Turn",
    "UsageDay",
    "UsageTotal",
    "Webhook",
    "Workspace",
    "WorkspaceGroup",
]
