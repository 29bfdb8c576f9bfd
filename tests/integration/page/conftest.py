"""A checkpoint that a driver has left, one whose driver seems to live, and a browser."""

from __future__ import annotations

import os
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat, write_heartbeat
from tests.support.fleet import said_again

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AS_ELSEWHERE = r"""() => {
  const tidy = () => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const said = texts.currentNode.data.replace(/\/\S*?\/pytest-\d+\/[^/]+/g, "/data");
      if (said !== texts.currentNode.data) texts.currentNode.data = said;
    }
  };
  tidy();
  // What is asked again meanwhile is written anew.
  const all = { childList: true, subtree: true, characterData: true };
  new MutationObserver(tidy).observe(document.body, all);
}"""
"""The folder of a test is nobody else's: a picture has another name of it."""
_INTERVAL_MS = 1000
RECORDED = Path(__file__).parents[2] / "recorded" / "format_1" / "recording.tar.xz"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's."""
    from tests.support.browser import chromium

    with chromium() as browser:
        yield browser


def picture(page: Page, name: str, *, whole: bool = False) -> None:
    """A picture for the docs, where somebody wants one."""
    folder = os.environ.get("EOS_PICTURES")
    if folder:
        for frame in page.frames:
            frame.evaluate(AS_ELSEWHERE)
        page.screenshot(path=Path(folder) / f"page-{name}.png", full_page=whole)


def recorded_checkpoint(folder: Path, name: str = "killed-settling") -> Path:
    """A copy of a recorded checkpoint: its driver was killed with a batch in flight."""
    with tarfile.open(RECORDED) as archive:
        wanted = [m for m in archive.getmembers() if m.name.startswith(f"{name}/checkpoint")]
        archive.extractall(folder, wanted, filter="data")
    return folder / name / "checkpoint"


_ALIVE: dict[Path, tuple[threading.Event, threading.Thread]] = {}


def beats(checkpoint: Path) -> None:
    """Its driver lives from now on, as whoever looks twice sees."""
    falls_silent(checkpoint)
    ended = threading.Event()

    def beat() -> None:
        _changed(checkpoint, beat_at_ms=time.time_ns() // 1_000_000, interval_ms=_INTERVAL_MS)

    def go_on() -> None:
        while not ended.wait(0.2):
            beat()

    beat()  # before anybody looks
    thread = threading.Thread(target=go_on, daemon=True)
    _ALIVE[checkpoint] = ended, thread
    thread.start()


def falls_silent(checkpoint: Path) -> None:
    """Its heartbeat stands still from now on."""
    if checkpoint in _ALIVE:
        ended, thread = _ALIVE.pop(checkpoint)
        ended.set()
        thread.join()
    _changed(checkpoint, beat_at_ms=1, interval_ms=_INTERVAL_MS)


def _changed(checkpoint: Path, **changes: Any) -> None:
    store = CheckpointStore.open(checkpoint)
    heartbeat = read_heartbeat(store)
    assert heartbeat is not None
    write_heartbeat(store, said_again(heartbeat, **changes))
