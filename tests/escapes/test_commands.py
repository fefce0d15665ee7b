"""Attempts to escape from the sandbox with the shell and git, using the real tools.

An attempt must neither read nor change anything around the workspace: a folder with a secret,
another workspace, Loom's data folder, a server on this machine and the server's environment. After
each attempt all of these are unchanged, and the call has returned a result.
"""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conversations.agent.sandbox.command_run import run_command
from conversations.agent.sandbox.repositories import find_repositories, make_protection
from conversations.agent.sandbox.support import find_support
from conversations.agent.tools.tool import ToolResult
from tests.sandbox.processes import LONG, find_processes
from tests.tools.commanding import Commands, commands, set_loom

__all__ = ["commands"]

SECRET = "the-secret-of-somebody-else"


@dataclass
class Around:
    """The machine on which an attempt is made."""

    commands: Commands
    folder: Path
    data: Path
    listener: socket.socket
    abstract: socket.socket

    @property
    def root(self) -> Path:
        return self.commands.root

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def fill(self, text: str) -> str:
        """Return the text with its placeholders replaced by this machine's values."""
        names = {
            "OUTSIDE": str(self.folder),
            "DATA": str(self.data),
            "PARENT": str(self.root.parent),
            "ROOT": str(self.root),
            "PORT": str(self.port),
            "SERVER": str(os.getpid()),
            "ABSTRACT": self.abstract.getsockname()[1:].decode(),
            "PREFIX": sys.base_prefix,
            "LONG": str(LONG),
        }
        for name, value in names.items():
            text = text.replace(name, value)
        return text

    def state(self) -> dict[str, bytes | None]:
        """Return everything outside of the workspace that an attempt could change."""
        places = [self.folder, self.data]
        found: dict[str, bytes | None] = {str(path): None for path in self.root.parent.iterdir()}
        for place in places:
            for path in place.rglob("*"):
                if not path.is_relative_to(self.data / "blobs"):
                    found[str(path)] = path.read_bytes() if path.is_file() else None
        return found

    def visitors(self) -> list[str]:
        """Return the servers of this machine to which an attempt has connected."""
        found = []
        for server in (self.listener, self.abstract):
            try:
                server.accept()[0].close()
                found.append(str(server.getsockname()))
            except BlockingIOError:
                pass
        return found


@pytest.fixture
def around(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Around]:
    outside = tmp_path / "outside"
    data = tmp_path / "data"
    (outside / "folder").mkdir(parents=True)
    (data / "blobs").mkdir(parents=True)
    for path in (outside / "secret", data / "secret_key", data / "loom.sqlite3"):
        path.write_text(f"{SECRET}\n")
    for name in ("ANTHROPIC_API_KEY", "LOOM_SECRET_KEY", "DATABASE_URL", "BASH_ENV"):
        monkeypatch.setenv(name, SECRET)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_CONFIG_GLOBAL", "GIT_EXEC_PATH"):
        monkeypatch.setenv(name, str(outside))
    set_loom(
        monkeypatch,
        data_dir=data,
        command_seconds=20,
        command_max_processes=60,
        command_max_memory_mb=256,
        command_max_file_mb=8,
        max_output_bytes=100_000,
    )
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 0))
        abstract.bind(f"\0loom-{os.getpid()}")
        for server in (listener, abstract):
            server.listen()
            server.setblocking(False)
        yield Around(commands, outside, data, listener, abstract)


def attempt(around: Around, command: str, **arguments: object) -> ToolResult:
    """Make an attempt and check that nothing outside was read or changed."""
    before = around.state()
    result = around.commands.shell(around.fill(command), **arguments)
    check_outside(around, before, result)
    return result


def attempt_all(around: Around, commands: dict[str, str]) -> ToolResult:
    """Make all attempts in one sandbox, each in a shell of its own.

    The output has a line ``done NAME`` for each successful attempt. Check that all were made.
    """
    lines = [f"echo == {name}; ( {it}\n) && echo done {name}" for name, it in commands.items()]
    result = attempt(around, "\n".join([*lines, "echo == over"]))
    made = [line for line in result.output.splitlines() if line.startswith("== ")]
    assert made == [f"== {name}" for name in (*commands, "over")]
    return result


def check_outside(around: Around, before: dict[str, bytes | None], result: ToolResult) -> None:
    assert SECRET not in result.output
    assert around.state() == before
    assert around.visitors() == []
    assert result.output


READING = {
    "passwords": "cat /etc/shadow /etc/gshadow /etc/sudoers",
    "secret_key": "cat DATA/secret_key",
    "database": "cat DATA/*.sqlite3; ls -la DATA",
    "parent": "ls -A PARENT | grep -v workspace; cat PARENT/outside/secret",
    "dots": "cat ../outside/secret ../../*/outside/secret",
    "homes": "find /root /home -type f -not -path 'PREFIX/*' | head",
    "link": "ln -s OUTSIDE door; cat door/secret; cat < door/secret",
    "hard_link": "ln OUTSIDE/secret mine; cat mine",
    "proc_root": "cat /proc/1/root/OUTSIDE/secret; ls /proc/*/root/OUTSIDE",
    "proc_cwd": "cat /proc/1/cwd/../outside/secret",
    "proc_server": "cat /proc/SERVER/environ /proc/SERVER/cmdline /proc/SERVER/root/etc/shadow",
    "environment": "env; set; cat /proc/*/environ | tr '\\0' '\\n'",
    "descriptors": "for n in 3 4 5 6 7 8 9 10 11 12 13; do cat <&$n; done; ls -l /proc/self/fd",
    "mount": "mount --bind /proc/1/root x; mount -t proc p /mnt; umount ROOT; umount /usr; ls ..",
    "namespace": "unshare -Ur cat OUTSIDE/secret; unshare -Urm true; nsenter -t 1 -a true",
    "new_root": "mkdir r; pivot_root r r; cd r; chroot . /bin/sh -c 'cat OUTSIDE/secret'",
    "devices": "mknod disk b 254 0; cat disk /dev/vda* /dev/sda* /dev/mem /dev/kmsg | head -c 100",
    "journal": "dmesg; journalctl; ls -A /var/log /var/lib /var/spool /run /srv /opt /mnt",
    "suid": "su -c 'cat OUTSIDE/secret'; sudo -n true; grep NoNewPrivs /proc/self/status",
    "history": "cat ~/.bash_history ~/.ssh/* ~/.aws/* ~/.netrc ~/.config/*/*; ls -A ~",
}


def test_attempts_read_nothing_outside_of_the_workspace(around: Around) -> None:
    attempt_all(around, READING)


def test_folders_with_keys_are_hidden(around: Around) -> None:
    folders = ("/etc/ssl/private", "/etc/pki/tls/private", "/etc/ssh", "/etc/sudoers.d")
    result = attempt_all(around, {folder: f"test -e {folder}" for folder in folders})
    assert "done" not in result.output


WRITING = {
    "system": "touch /usr/x /etc/x /bin/x /lib/x /x /var/x /opt/x /sys/x /boot/x",
    "parent": "touch ../x PARENT/x; mkdir ../y; mv ../outside ../z; rm -rf ../outside",
    "outside": "echo x > OUTSIDE/secret; rm -rf OUTSIDE; touch OUTSIDE/new",
    "data": "rm -rf DATA; echo x > DATA/secret_key; mkdir -p DATA && echo x > DATA/loom.sqlite3",
    "own_folder": "cd ..; mv workspace elsewhere; rmdir workspace; ln -sfn OUTSIDE workspace",
    "link": "ln -s OUTSIDE door; echo x > door/secret; rm -r door/; touch door/new",
    "kernel": "echo x > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger;"
    " echo 1 > /proc/self/oom_score_adj; sysctl -w kernel.hostname=x; hostname x",
    "python": "chmod -R 777 PREFIX /usr/bin; touch PREFIX/x; pip install --target PREFIX/lib ./x",
    "owner": "chown -R 1234 ../outside; chmod 777 .. ../outside; touch -d 2001-01-01 ../outside",
    "archive": "mkdir a && touch a/x && tar cPf t.tar --transform 's,a/x,OUTSIDE/x,' a/x;"
    " tar xPf t.tar; printf 'x' | cpio -i",
}


def test_attempts_write_nothing_outside_of_the_workspace(around: Around) -> None:
    watched = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname"]
    kernel = [Path(path).read_text() for path in watched]
    attempt_all(around, WRITING)
    assert [Path(path).read_text() for path in watched] == kernel
    assert not any(Path(folder, "x").exists() for folder in ("/", "/usr", "/etc", sys.base_prefix))
    assert around.root.is_dir()
    assert not around.root.is_symlink()


def test_existing_links_give_no_access_to_the_outside(around: Around) -> None:
    (around.root / "door").symlink_to(around.folder)
    (around.root / "file").symlink_to(around.folder / "secret")
    os.link(around.folder / "secret", around.root / "same")  # a hard link is in the workspace
    attempt(around, "cat file door/secret; echo x > file; echo x > door/new; rm -rf door/ same")


EXCHANGE = """
import ctypes
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"x/.git", -100, b"x/door", 2)
"""


@pytest.fixture
def exchanging(around: Around) -> Iterator[None]:
    """A process that swaps a repository's folder with a link to the outside, again and again."""
    for folder in ("objects", "refs"):
        (around.root / "x/.git" / folder).mkdir(parents=True)
    for file in ("HEAD", "config"):
        (around.root / "x/.git" / file).write_text("")
    for name in ("objects", "refs", "HEAD", "config"):
        (around.folder / name).mkdir()
    (around.root / "x/door").symlink_to(around.folder)
    other = subprocess.Popen([sys.executable, "-c", EXCHANGE], cwd=around.root)
    yield
    other.kill()
    other.wait()


@pytest.mark.usefixtures("exchanging")
async def test_a_link_swapped_in_meanwhile_gives_no_access_to_the_outside(around: Around) -> None:
    before = around.state()
    command = "cat x/.git/secret x/door/secret; echo w > x/.git/new; echo w > x/door/new; pwd"
    words = ["/bin/sh", "-c", command]
    done = []
    for _ in range(15):
        protection = make_protection(around.root, find_repositories(around.root))
        done.append(await run_command(words, root=around.root, protection=protection))
    assert SECRET not in "".join(one.output for one in done)
    assert around.state() == before
    assert [one.output for one in done if one.exit_code] == []


CONNECT = "python3 -c \"import socket; s = socket.{}; print('connected')\""
NETWORK = {
    "loopback": CONNECT.format("create_connection(('127.0.0.1', PORT), 3)"),
    "metadata": CONNECT.format("create_connection(('169.254.169.254', 80), 3)"),
    "internet": CONNECT.format("create_connection(('1.1.1.1', 53), 3)"),
    "names": CONNECT.format("getaddrinfo('example.org', 80)"),
    "abstract": CONNECT.format("socket(socket.AF_UNIX); s.connect('\\\\0ABSTRACT')"),
    "raw": CONNECT.format("socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    "docker": "ls -l /var/run/docker.sock /run/docker.sock /run/systemd /run/dbus | grep s && "
    + CONNECT.format("socket(socket.AF_UNIX); s.connect('/var/run/docker.sock')"),
}


def test_no_address_or_socket_outside_is_reachable(around: Around) -> None:
    told = attempt_all(around, NETWORK).output.splitlines()
    assert "connected" not in told
    assert not [line for line in told if line.startswith("done ")]


SYSTEM_CALLS = """python3 -c "
import ctypes, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
calls = {'keyctl': (250, 219), 'bpf': (321, 280), 'io_uring': (425, 425), 'faults': (323, 282)}
for name, numbers in calls.items():
    libc.syscall(numbers[not x86], 0, 0, 0, 0)
    print(name, os.strerror(ctypes.get_errno()))
for family in (socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG):
    try: print(family, socket.socket(family, socket.SOCK_STREAM))
    except OSError as error: print(error.strerror)
print(socket.socket(socket.AF_INET).family, socket.socket(socket.AF_UNIX).family)
" """


def test_dangerous_system_calls_and_address_families_are_blocked(around: Around) -> None:
    result = attempt(around, SYSTEM_CALLS)
    if not find_support().abilities.filters:
        pytest.skip("NO FILTER OF SYSTEM CALLS on this kind of machine")
    assert result.output.count("Function not implemented") == 4
    assert result.output.count("Address family not supported by protocol") == 3
    assert result.ok


SETUID = {
    "chmod": "cp /bin/sh a; chmod 4755 a",
    "letters": "cp /bin/sh b; chmod u+s b",
    "fchmod": "python3 -c 'import os; os.fchmod(os.open(\"c\", os.O_CREAT), 0o4755)'",
    "fchmodat2": "touch d; python3 -c 'import ctypes\n"
    'assert ctypes.CDLL(None).syscall(452, -100, b"d", 0o4755, 0) == 0\'',
    "open": "python3 -c 'import os; os.open(\"e\", os.O_CREAT | os.O_WRONLY, 0o4755)'",
    "nameless": "python3 -c 'import os\n"
    'fd = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4755)\n'
    'os.link(f"/proc/self/fd/{fd}", "f", follow_symlinks=True)\'',
    "mknod": "python3 -c 'import os; os.mknod(\"g\", 0o104755)'",
    "openat2": "python3 -c 'import ctypes, struct\n"
    'how = struct.pack("QQQ", 0o101, 0o4755, 0)\n'
    'assert ctypes.CDLL(None).syscall(437, -100, b"h", how, len(how)) >= 0\'',
    "mkdir": "python3 -c 'import os; os.mkdir(\"i\", 0o4755)'; test -u i",
    "install": "install -m 4755 /bin/sh j",
    "tar": "tar xf t.tar --same-permissions; test -u k",
    "copy": "cp -p suid l",
}


def test_no_setuid_program_can_be_created(around: Around) -> None:
    with tarfile.open(around.root / "t.tar", "w") as tar:
        program = tarfile.TarInfo("k")
        program.mode = 0o4755
        tar.addfile(program)
    (around.root / "suid").touch()
    (around.root / "suid").chmod(0o4755)
    result = attempt_all(around, SETUID)
    if not find_support().abilities.filters:
        pytest.skip("NO FILTER OF SYSTEM CALLS on this kind of machine")
    assert "done" not in result.output
    found = [path.name for path in around.root.iterdir() if path.stat().st_mode & stat.S_ISUID]
    assert found == ["suid"]
    assert (around.root / "k").exists()  # tar extracts the file without the setuid bit


def test_commands_work_in_a_setgid_folder(around: Around) -> None:
    around.root.chmod(0o2775)
    command = (
        "mkdir -p a/b x && touch a/b/c && chmod 755 a/b && chmod -R u+rwX a && cp -a a d"
        " && tar cf t.tar a && tar xpf t.tar -C x && mv d /tmp/d && git init -q --shared g"
    )
    result = attempt(around, f"{command} && echo all done")
    assert result.output.endswith("\nall done\n"), result.output


def test_processes_outside_are_neither_visible_nor_signalled(around: Around) -> None:
    result = attempt(
        around, "kill -9 SERVER; kill -STOP SERVER; pkill -9 python; ls -d /proc/[0-9]*"
    )
    assert len([line for line in result.output.splitlines() if line.startswith("/proc/")]) < 10
    assert attempt(around, "echo begun; kill -9 -1; echo on").output.startswith("begun")


EXHAUSTING = {
    "fork_bomb": (":(){ :|:& };:; sleep 60", "more than 60 processes"),
    "fork_bomb_that_hides": (
        "python3 -c 'import os\nwhile True:\n    if os.fork() == 0: os.setsid()'",
        "more than 60 processes",
    ),
    "memory": (
        "for i in 1 2 3 4; do python3 -c 'x = bytearray(100 << 20); input()' <&3 & done 3<>f; wait",
        "more than 256 MiB",
    ),
    "memory_of_one": ("python3 -c 'bytearray(1 << 30)'", "MemoryError"),
    "memory_as_files": (
        "for n in 1 2 3 4 5 6 7 8 9; do head -c 8000000 /dev/zero > /dev/shm/$n || exit; done",
        "No space left",
    ),
    "large_file": ("head -c 20000000 /dev/zero > big", "exit code"),
    "sparse_file": ("truncate -s 1T big", "exit code"),
}


@pytest.mark.parametrize(("command", "said"), EXHAUSTING.values(), ids=EXHAUSTING)
def test_processes_memory_and_files_are_limited(around: Around, command: str, said: str) -> None:
    os.mkfifo(around.root / "f")
    result = attempt(around, command)
    assert not result.ok
    assert said in result.output


ENDLESS = {
    "stopped": "kill -STOP $$; sleep 1000",
    "silent": "exec >&- 2>&- <&-; sleep 1000",
}


@pytest.mark.parametrize("command", ENDLESS.values(), ids=ENDLESS)
def test_the_timeout_ends_a_command_that_hangs(around: Around, command: str) -> None:
    result = attempt(around, command, timeout_seconds=1)
    assert not result.ok
    assert "It was ended after 1 seconds" in result.output


def test_only_a_part_of_endless_output_is_kept(around: Around) -> None:
    for command in ["cat /dev/zero", "yes & yes >&2 & while :; do :; done"]:
        result = attempt(around, command, timeout_seconds=1)
        assert not result.ok, command
        assert "It was ended after 1 seconds" in result.output, command
        assert "bytes left out" in result.output, command
        assert len(result.output) < 110_000, command


DAEMON = """python3 -c "
import os, sys, time
if os.fork(): sys.exit()
os.setsid()
if os.fork(): sys.exit()
for fd in range(256):
    try: os.close(fd)
    except OSError: pass
time.sleep(LONG)
open('late', 'w')
" """
OUTLIVING = {
    "background": "sleep LONG &",
    "nohup": "nohup sleep LONG >/dev/null 2>&1 </dev/null &",
    "session": "setsid -f sh -c 'sleep LONG; touch late' >/dev/null 2>&1",
    "daemon": DAEMON,
    "disowned": "bash -c 'trap \"\" HUP TERM; sleep LONG & disown -a; exit 0'",
    "at": "echo 'touch OUTSIDE/late' | at now; (crontab -l; echo '* * * * * touch x') | crontab -;"
    " systemd-run --user sleep LONG",
}


def test_no_process_outlives_the_call(around: Around) -> None:
    for command in OUTLIVING.values():
        attempt(around, f"{command}\necho done")
        assert not find_processes(f"sleep {LONG}"), command
        assert not find_processes(f"sleep({LONG})"), command
        assert not (around.root / "late").exists(), command


ASKING = {
    "read": "read -p 'Sure? ' answer; echo \"[$answer]\"",
    "python": "python3 -i",
    "password": "su; passwd",
    "pager": "less /etc/passwd; more /etc/passwd; top; man ls",
    "terminal": 'cat /dev/tty; python3 -c "import fcntl, termios;'
    " fcntl.ioctl(0, termios.TIOCSTI, b'x')\"; stty -a; script -c ls",
    "commit": "git init -q . && git commit --allow-empty; git rebase -i HEAD; git add -p",
}


def test_interactive_programs_do_not_wait_for_input(around: Around) -> None:
    assert "It was ended after" not in attempt_all(around, ASKING).output


def test_terminal_control_sequences_are_returned_as_text(around: Around) -> None:
    signs = r"\033[2J\033]0;title\007\033]52;c;aGk=\007\033[31mred\033[0m\r\b\0\377\u202e"
    result = attempt(around, f"printf '{signs}'")
    assert "\x1b[31mred\x1b[0m" in result.output
    assert "\0" not in result.output
    result.output.encode()


def test_commands_can_create_files_with_any_name(around: Around) -> None:
    result = attempt(around, "touch $'a\\nb' $'\\u202egnp' $'\\377' -- '-rf' $'x\\033[2J'; ls -b")
    assert result.ok
    assert len(os.listdir(os.fsencode(around.root))) == 5


# git


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two repositories with a commit each: ``mine``, and ``theirs`` with a secret."""
    folder = tmp_path_factory.mktemp("templates")
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=x", "-c", "user.email=x@y"]
    for name, text in (("mine", "one"), ("theirs", SECRET)):
        commands = (
            ["git", "init", "-q", "-b", "main", "--template=", name],
            ["git", "-C", name, "add", "a.txt"],
            ["git", "-C", name, *identity, "commit", "-qm", text],
        )
        for command in commands:
            subprocess.run(command, cwd=folder, env=clean, check=True)
            (folder / name / "a.txt").write_text(f"{text}\n")
    return folder


@pytest.fixture
def repository(around: Around, templates: Path) -> Around:
    """The workspace as a repository with a change that is not committed."""
    shutil.copytree(templates / "mine", around.root, dirs_exist_ok=True)
    (around.root / "a.txt").write_text("two\n")
    return around


def configure(around: Around, text: str) -> None:
    """Append to the repository's configuration, as anybody may who can write to the workspace."""
    with (around.root / ".git/config").open("a") as file:
        file.write(around.fill(text))


def use_git(around: Around, *arguments: str) -> ToolResult:
    before = around.state()
    result = around.commands.git(*(around.fill(word) for word in arguments))
    check_outside(around, before, result)
    return result


def test_hooks_do_not_run(repository: Around) -> None:
    hooks = repository.root / ".git/hooks"
    names = (
        "pre-commit",
        "post-commit",
        "commit-msg",
        "post-checkout",
        "pre-push",
        "post-index-change",
    )
    hooks.mkdir(exist_ok=True)
    for name in names:
        (hooks / name).write_text("#!/bin/sh\ntouch made-by-hook\n")
        (hooks / name).chmod(0o755)
    configure(repository, "[core]\n\thooksPath = .git/hooks\n")
    assert use_git(repository, "commit", "-am", "second").ok
    use_git(repository, "checkout", "-b", "other")
    assert not (repository.root / "made-by-hook").exists()


PROGRAMS = {
    "fsmonitor": ("[core]\n\tfsmonitor = touch made; echo\n", ["status"]),
    "external": ("[diff]\n\texternal = touch made; echo\n", ["diff"]),
    "external_log": ("[diff]\n\texternal = touch made; echo\n", ["log", "-p"]),
    "pager": ("[core]\n\tpager = touch made; cat\n[pager]\n\tlog = touch made; cat\n", ["log"]),
    "editor": ("[core]\n\teditor = touch made;\n", ["commit", "-a"]),
    "sequence": ("[sequence]\n\teditor = touch made;\n", ["rebase", "-i", "--root"]),
    "alias": ("[alias]\n\tst = !touch made\n\tlog = !touch made\n", ["st"]),
    "alias_of_known": ("[alias]\n\tlog = !touch made\n", ["log"]),
    "ssh": (
        '[core]\n\tsshCommand = touch made;\n[remote "origin"]\n\turl = ssh://x/y\n',
        ["fetch"],
    ),
    "ext": ('[remote "origin"]\n\turl = ext::sh -c touch% made\n', ["fetch", "origin"]),
    "gpg": ("[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = touch made;\n", ["commit", "-am", "x"]),
    "askpass": ("[core]\n\taskPass = touch made;\n[credential]\n\thelper = !touch made\n", ["log"]),
    "textconv": ('[diff "t"]\n\ttextconv = touch made; cat\n', ["diff"]),
}


@pytest.mark.parametrize(("config", "arguments"), PROGRAMS.values(), ids=PROGRAMS)
def test_programs_in_the_git_configuration_do_not_run(
    repository: Around, config: str, arguments: list[str]
) -> None:
    (repository.root / ".gitattributes").write_text("*.txt diff=t\n")
    configure(repository, config)
    use_git(repository, *arguments)
    assert not (repository.root / "made").exists()


def test_a_filter_which_git_must_run_is_confined(repository: Around) -> None:
    (repository.root / ".gitattributes").write_text("*.txt filter=f\n")
    program = "touch made-by-filter OUTSIDE/made; cat OUTSIDE/secret DATA/secret_key; env; cat"
    configure(repository, f'[filter "f"]\n\tclean = "{program}"\n\tsmudge = "{program}"\n')
    use_git(repository, "status")
    use_git(repository, "diff")
    assert not (repository.root / "made-by-filter").exists()  # status and diff may not write
    use_git(repository, "add", "a.txt")
    assert SECRET not in use_git(repository, "show", ":a.txt").output


@pytest.fixture
def elsewhere(around: Around, templates: Path) -> Path:
    """Another person's repository outside of the workspace."""
    return Path(shutil.copytree(templates / "theirs", around.folder / "repository"))


LEADING_OUT = ("OUTSIDE", "../outside", "/proc/1/root/OUTSIDE")


@pytest.mark.usefixtures("elsewhere")
def test_a_git_file_gives_no_access_to_a_repository_outside(around: Around) -> None:
    changing = ["commit", "--allow-empty", "-m", "x"]
    for place in LEADING_OUT:
        (around.root / ".git").write_text(around.fill(f"gitdir: {place}/repository/.git\n"))
        for arguments in (["log"], ["status"], ["show", "HEAD:a.txt"], changing):
            assert not use_git(around, *arguments).ok, (place, arguments)


def test_links_alternates_and_included_files_give_no_access_outside(
    repository: Around, elsewhere: Path
) -> None:
    root = repository.root
    use_git(repository, "init", "-q")
    (root / ".git/objects/info/alternates").write_text(f"{elsewhere}/.git/objects\n")
    (root / "linked").symlink_to(elsewhere)
    head = (elsewhere / ".git/refs/heads/main").read_text().strip()
    for arguments in (["show", head], ["cat-file", "-p", head], ["show", f"{head}:a.txt"]):
        assert not use_git(repository, *arguments).ok
    assert not repository.commands.run("git_command", arguments=["log"], folder="linked").ok
    use_git(repository, "worktree", "add", "--orphan", "-b", "w", "OUTSIDE/worktree")
    use_git(repository, "clone", "OUTSIDE/repository", "stolen")
    use_git(repository, "diff", "--no-index", "OUTSIDE/secret", "/dev/null")
    use_git(repository, "config", "--get", "--file", "OUTSIDE/secret", "x.y")
    configure(repository, "[include]\n\tpath = OUTSIDE/secret\n[core]\n\tworktree = OUTSIDE\n")
    use_git(repository, "add", "-A")
    use_git(repository, "clean", "-fdx")
    use_git(repository, "checkout", "--", ".")


def test_a_patch_does_not_write_outside(repository: Around) -> None:
    patch = (
        "diff --git a/../outside/new b/../outside/new\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/../outside/new\n@@ -0,0 +1 @@\n+x\n"
    )
    (repository.root / "p.diff").write_text(patch)
    use_git(repository, "apply", "--unsafe-paths", "p.diff")
    use_git(repository, "apply", "--directory=../outside", "p.diff")


def test_a_submodule_runs_no_program(repository: Around) -> None:
    url = "ext::sh -c touch% made"
    (repository.root / ".gitmodules").write_text(f'[submodule "s"]\n\tpath = s\n\turl = {url}\n')
    attempt(repository, f"git submodule add '{url}' s; git clone '{url}' t; git fetch '{url}'")
    assert not (repository.root / "made").exists()
    assert not use_git(repository, "submodule", "update", "--init").ok


def test_only_a_part_of_a_huge_diff_is_kept(repository: Around) -> None:
    (repository.root / "big").write_text("x" * 99 + "\n" * 50_000 + "long line " * 300_000)
    use_git(repository, "add", "big")
    result = use_git(repository, "diff", "--cached")
    assert "bytes left out" in result.output
    assert len(result.output) < 110_000
