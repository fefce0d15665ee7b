"""Static files, which the ASGI application serves without Django's middleware."""

import gzip
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.middleware.csp import ContentSecurityPolicyMiddleware
from django.middleware.security import SecurityMiddleware
from django.templatetags.static import static
from django.test import override_settings

from loomweb.static_files import PIECE_BYTES, StaticFiles

HASHED = "loomweb.static_files.LoomStaticStorage"


async def to_django(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StaticFiles]:
    folder = tmp_path_factory.mktemp("static")
    storages = settings.STORAGES | {"staticfiles": {"BACKEND": HASHED}}
    with override_settings(STATIC_ROOT=folder, STORAGES=storages):
        others = ["admin", "ninja", "redoc*"]
        call_command("collectstatic", verbosity=0, interactive=False, ignore_patterns=others)
        (folder / "large.bin").write_bytes(b"x" * (PIECE_BYTES * 3 + 1))
        yield StaticFiles(to_django)


async def get(
    application: StaticFiles, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], list[bytes]]:
    """Return the status, the headers and the pieces of the body."""
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
    }
    asked = ApplicationCommunicator(application, scope)
    start = await asked.receive_output()
    pieces = []
    while True:
        message = await asked.receive_output()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    await asked.wait()
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return start["status"], found, pieces


async def test_a_browser_caches_a_file_for_ever(files: StaticFiles) -> None:
    status, headers, pieces = await get(files, static("css/app.css"), accept_encoding="gzip")
    assert (status, headers["content-type"]) == (200, 'text/css; charset="utf-8"')
    assert "immutable" in headers["cache-control"]
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    packed = b"".join(pieces)
    assert len(packed) == int(headers["content-length"])
    _, plain, identity = await get(files, static("css/app.css"))
    assert gzip.decompress(packed) == b"".join(identity)
    assert plain["etag"] == headers["etag"]


@pytest.mark.parametrize("imports_downwards", [False, True])
def test_a_hashed_name_changes_with_imports_at_any_depth(
    tmp_path: Path, imports_downwards: bool
) -> None:
    """The order in which the files are read makes no difference."""
    names = sorted((f"{number}.js" for number in range(10)), reverse=imports_downwards)

    def collect(last: str) -> str:
        """Return the hashed name of the first file."""
        source, root = tmp_path / last / "source", tmp_path / last / "root"
        source.mkdir(parents=True)
        for name, imported in pairwise(names):
            (source / name).write_text(f'import "./{imported}";')
        (source / names[-1]).write_text(last)
        with override_settings(
            STATIC_ROOT=root,
            STATICFILES_DIRS=[source],
            STATICFILES_FINDERS=["django.contrib.staticfiles.finders.FileSystemFinder"],
            STORAGES=settings.STORAGES | {"staticfiles": {"BACKEND": HASHED}},
        ):
            call_command("collectstatic", verbosity=0, interactive=False)
            first, second = (static(name).removeprefix("/static/") for name in names[:2])
        assert second in (root / first).read_text()
        return first

    assert collect("one") != collect("two")


async def test_a_cached_file_is_not_sent_again(files: StaticFiles) -> None:
    _, headers, _ = await get(files, static("js/page.js"))
    status, _, pieces = await get(files, static("js/page.js"), if_none_match=headers["etag"])
    assert (status, pieces) == (304, [b""])


async def test_static_files_have_the_security_headers_of_a_page(files: StaticFiles) -> None:
    page = HttpResponse()
    for middleware in (SecurityMiddleware, ContentSecurityPolicyMiddleware):
        middleware(lambda _: page).process_response(HttpRequest(), page)
    for asked in ({}, {"method": "POST"}, {"method": "HEAD"}, {"range": "bytes=0-9"}):
        _, headers, _ = await get(files, static("js/page.js"), **asked)
        for name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy"):
            assert headers[name.lower()] == page[name], (asked, name)
    assert "default-src 'none'" in headers["content-security-policy"]


async def test_a_large_file_is_sent_in_pieces(files: StaticFiles) -> None:
    _, _, pieces = await get(files, "/static/large.bin")
    assert [len(piece) for piece in pieces] == [PIECE_BYTES] * 3 + [1, 0]
    status, _, pieces = await get(files, "/static/large.bin", range="bytes=5-14")
    assert (status, [len(piece) for piece in pieces]) == (206, [10, 0])


async def test_files_that_a_newer_process_collects_later_are_served(files: StaticFiles) -> None:
    """During an upgrade, a page of the new process may fetch its files from this one."""
    folder = Path(settings.STATIC_ROOT)
    for path in ("css/later.0123456789ab.css", "css/later.css", "../outside.0123456789ab.css"):
        (folder / path).write_text("a {}")
    (folder / "folder.0123456789ab").mkdir()
    status, headers, pieces = await get(files, "/static/css/later.0123456789ab.css")
    assert (status, b"".join(pieces)) == (200, b"a {}")
    assert headers["content-type"].startswith("text/css")
    for path in (
        "/static/css/later.css",
        "/static/css/later.ba9876543210.css",
        "/static/../outside.0123456789ab.css",
        f"/static/{folder.parent}/outside.0123456789ab.css",
        "/outside.0123456789ab.css",
        "/static/folder.0123456789ab",
        "/static/css/\0.0123456789ab.css",
    ):
        assert (await get(files, path))[0] == 404, path


@pytest.mark.parametrize(
    "path", ["/", "/static/", "/static/none.css", "/static/../loom.sqlite3", "/static/app.css.gz"]
)
async def test_other_paths_are_passed_on_to_django(files: StaticFiles, path: str) -> None:
    assert (await get(files, path))[0] == 404


async def test_only_get_and_head_requests_are_allowed(files: StaticFiles) -> None:
    assert (await get(files, static("js/page.js"), "POST"))[0] == 405
    status, headers, pieces = await get(files, static("js/page.js"), "HEAD")
    assert (status, pieces) == (200, [b""])
    assert int(headers["content-length"]) > 0
