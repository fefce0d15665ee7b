"""Hostile files for tests in any browser: opening the files, and the expected outcome."""

from pathlib import Path
from uuid import uuid4

from tests.e2e.conftest import Server, Visitors
from tests.rendering.hostile_files import make_hostile_files


def example_folder(server: Server) -> Path:
    return next(server.folder.glob("workspaces/example"))


def write_hostile_files(server: Server, evil: Visitors) -> list[str]:
    """Write the files, and return their paths below the workspace's folder."""
    folder = example_folder(server) / f"hostile-{uuid4().hex[:8]}"
    folder.mkdir()
    files = make_hostile_files(evil.url)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [f"{folder.name}/{name}" for name in files]


OPEN_ALL = """
async (paths) => {
  // Frames as the page's own, some at a time; each of them ends its loading.
  const own = document.querySelector("iframe.preview");
  localStorage.setItem("secret", "kept");
  let loaded = 0;
  window.alert = () => { window.pwned = 1; };
  for (let at = 0; at < paths.length; at += 30) {
    const frames = paths.slice(at, at + 30).map((path) => {
      const frame = own.cloneNode();
      const done = new Promise((resolve) => { frame.onload = () => resolve(loaded += 1); });
      const url = new URL(own.src);
      url.searchParams.set("path", path);
      frame.src = url;
      frame.style = "height: 60px";
      document.body.append(frame);
      return { frame, done };
    });
    const late = new Promise((resolve) => setTimeout(resolve, 20000));
    await Promise.race([Promise.all(frames.map(({ done }) => done)), late]);
    await new Promise((resolve) => setTimeout(resolve, 150));
    frames.forEach(({ frame }) => frame.remove());
  }
  await new Promise((resolve) => setTimeout(resolve, 500));
  return {
    loaded,
    pwned: window.pwned ?? 0,
    secret: localStorage.getItem("secret"),
    title: document.title,
    path: location.pathname,
    seen: own.contentDocument,
  };
}
"""


def outcome_of(paths: list[str]) -> dict[str, object]:
    return {
        "loaded": len(paths),
        "pwned": 0,
        "secret": "kept",
        "title": "greet.py · Example · Loom Web",
        "path": "/w/example/files/",
        "seen": None,  # the page cannot read the frame's document, either
    }
