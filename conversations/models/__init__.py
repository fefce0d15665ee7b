"""The models: tables, constraints and small properties. The functions of ``archive`` write."""

from .accounts import ApiAnswer, ApiToken, Device, Invitation, Preferences, SignInLink
from .archive import ChatEvent, JournalGap, PromptText, PurgePermit, Rewind, Turn
from .audit import AuditEntry, AuditHead, PurgedContent, PurgeOrder, Receipt
from .context import Compaction, SessionSkill, StateCheckpoint
from .review import ReviewFlag, ReviewMark, ReviewNote
from .runs import BROKEN, DraftChunk, LearntModel, ModelCall, Run, ToolCall, involving
from .search import SearchEntry, SearchProgress, TurnEmbedding
from .sessions import UNINDEXED, UNREVIEWED, ReadingPosition, Session
from .tools import Attachment, FileChange, Revert, ToolPermission, ToolServerGrant
from .workspaces import Membership, MemoryEntry, Workspace, WorkspaceGroup
