"""``git_command``: git in the workspace's folder, without a shell.

A repository can name programs that git runs: hooks, filters, pagers, editors and credential
helpers. git therefore always runs in the sandbox, with these programs turned off as far as
possible, and with a read-only workspace for commands that only read. Without a sandbox, every call
may do anything and is treated accordingly.
"""

import asyncio
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from conversations.agent.files.executed_files import names_self_running
from conversations.agent.sandbox import support
from conversations.archive.workspaces import read_name
from conversations.domain.messages import say
from conversations.domain.text import one_line
from conversations.domain.tool_calls import CHANGES, READS, CallPlan, ToolScope

from . import git_words
from .commands import (
    Folder,
    Seconds,
    check_text,
    command_note,
    command_summary,
    execute,
    read_folder,
)
from .git_words import GitCall
from .tool import BadArgument, Requirement, ToolArguments, ToolContext, ToolResult, declare_tool

NOBODY = "Loom"
ADDRESS = "user@loom.invalid"

_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "core.editor=true",
    "sequence.editor=true",
    "core.sshCommand=ssh -oBatchMode=yes",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "push.gpgSign=false",
    "log.showSignature=false",
    "gpg.program=false",
    "gpg.openpgp.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
    "log.diffMerges=separate",
    "diff.submodule=short",
    "status.submoduleSummary=false",
    "submodule.recurse=false",
    "push.recurseSubmodules=no",
    "protocol.ext.allow=never",
    "credential.helper=",
    "safe.directory=*",
    "safe.bareRepository=explicit",
    "advice.detachedHead=false",
)

# The protocols of calls that need the network. Other calls may use none, so they do not fetch
# missing objects either. The environment variable takes precedence over the configuration. For a
# protocol without code of its own, git would run a program.
_PROTOCOLS = "file:git:http:https:ssh"

DESCRIPTION = """\
Run git in the workspace's folder, without a shell: 'arguments' is what follows 'git', as \
one text with quotes where needed, or as a list. Status, log, diff, show, blame and others \
that only look need no approval. Hooks do not run, no editor opens (give messages with \
-m), and there is no network unless the workspace allows it. Options are written in full, \
values that begin with '-' in the same word (--message=-x). Options before the subcommand, \
aliases, and options that name a program are not taken."""


class GitCommand(ToolArguments):
    arguments: Annotated[
        str | list[str],
        Requirement("be a text or a list of texts: what follows 'git'."),
        Field(description='What follows \'git\': "log --oneline -20", or ["commit", "-m", …].'),
    ]
    folder: Folder = ""
    timeout_seconds: Seconds = 0


def is_offered(scope: ToolScope) -> bool:
    """Return whether the tool is offered.

    If nothing may be changed, the tool is still offered if there is a sandbox to enforce that.
    """
    if support.find_mode() == support.UNSANDBOXED:
        return scope.offers_changes
    return support.can_run()


async def plan(context: ToolContext, arguments: GitCommand) -> CallPlan | ToolResult:
    git, folder = await _read(context, arguments)
    command = shlex.join(["git", git.subcommand, *git.words])
    if not git.changes:
        return CallPlan(effect=READS, summary=one_line(command, limit=100), command=command)
    text = f"{command}\n{folder.relative_to(context.root, walk_up=True)}"
    is_inside = folder != context.root
    is_kind = git.is_kind and not names_self_running(text)
    return CallPlan(
        effect=CHANGES,
        summary=command_summary(command, folder=arguments.folder if is_inside else ""),
        command=command,
        note=command_note(allows_network=git.needs_network, text=text),
        basis=support.find_mode(),
        kind_key=f"git:{git.subcommand}" if is_kind else "",
        kind_label=say("“%(command)s” with any arguments", command=f"git {git.subcommand}")
        if is_kind
        else "",
    )


async def run(context: ToolContext, arguments: GitCommand) -> ToolResult:
    git, folder = await _read(context, arguments)
    if git.changes and not context.scope.offers_changes:
        return ToolResult(ok=False, output=f"git {git.subcommand} is not allowed here.")
    name = await context.read(read_name, context.user_pk) if context.user_pk else ""
    with _identity_file(name or NOBODY) as identity:
        options = [word for setting in _CONFIG for word in ("-c", setting)]
        return await execute(
            context,
            ["git", "--no-pager", *options, *git.runs],
            folder=folder,
            timeout_seconds=arguments.timeout_seconds,
            allows_network=git.needs_network,
            may_write=git.changes,
            may_write_config=git.writes_config,
            readable=[identity],
            environment={
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": str(identity),
                "GIT_CEILING_DIRECTORIES": str(context.root.parent),
                "GIT_OPTIONAL_LOCKS": "1" if git.changes else "0",
                "GIT_ASKPASS": "true",
                "GIT_ALLOW_PROTOCOL": _PROTOCOLS if git.needs_network else "",
                "GIT_PROXY_COMMAND": "",
            },
        )


@contextmanager
def _identity_file(name: str) -> Iterator[Path]:
    """Yield a git configuration with the committer. The repository's own takes precedence."""
    plain = one_line("".join(sign for sign in name if sign.isprintable()), limit=200)
    quoted = plain.replace("\\", "\\\\").replace('"', '\\"')
    with tempfile.NamedTemporaryFile("w", prefix="loom-git-", encoding="utf-8") as file:
        file.write(f'[user]\n\tname = "{quoted}"\n\temail = "{ADDRESS}"\n')
        file.flush()
        yield Path(file.name).resolve()


async def _read(context: ToolContext, arguments: GitCommand) -> tuple[GitCall, Path]:
    text = arguments.arguments
    try:
        words = shlex.split(text) if isinstance(text, str) else text
    except ValueError as error:
        raise BadArgument(f"'arguments' cannot be read: {error}.") from error
    check_text(" ".join(words), "arguments")
    words = words[1:] if words[:1] == ["git"] else words
    words = words[1:] if words[:1] == ["--no-pager"] else words
    if not words:
        raise BadArgument("'arguments' is missing: the part of the command after 'git'.")
    if words[0].startswith("-"):
        raise BadArgument(
            f"Options before the subcommand ({words[0][:100]}) are not allowed. To run git in "
            "another folder, use 'folder'."
        )
    try:
        git = git_words.read_call(words)
    except git_words.WordNotAllowed as error:
        raise BadArgument(str(error)) from error
    has_network = support.has_network(workspace_allows=context.scope.allows_network)
    if git.needs_network and not has_network:
        raise BadArgument(
            f"git {git.subcommand} needs the network, which commands cannot use in this workspace."
        )
    # Without a sandbox, every call may change something.
    if support.find_mode() == support.UNSANDBOXED:
        git = replace(git, changes=True)
    return git, await asyncio.to_thread(read_folder, arguments.folder, context.root)


TOOL = declare_tool(
    name="git_command",
    description=DESCRIPTION,
    arguments=GitCommand,
    run=run,
    effect=CHANGES,
    plan=plan,
    is_offered=is_offered,
)
