"""Tables, constraints and small properties. Nothing here writes: see ``archive``."""

from .accounts import Device, Invitation, Preferences, SignInLink
from .archive import ChatEvent, JournalGap, PromptText, PurgePermit, Rewind, Turn
from .audit import AuditEntry, AuditHead
from .context import Compaction, SessionSkill, StateCheckpoint
from .purges import PurgedContent, PurgeOrder, Receipt
from .review import ReviewFlag, ReviewMark, ReviewNote
from .runs import BROKEN, DraftChunk, ModelCall, Run, ToolCall, involving
from .search import SearchEntry, SearchProgress
from .sessions import UNINDEXED, UNREVIEWED, Session
from .tokens import ApiAnswer, ApiToken
from .tools import Attachment, FileChange, Revert, ToolPermission
from .workspaces import Membership, Workspace, WorkspaceGroup
