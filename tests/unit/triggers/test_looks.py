"""Looks of all triggers of a process: a store that does not answer holds up nobody else's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from airflow_eos.supervision import trigger_watch


def test_a_store_with_more_apps_than_threads_keeps_nobody_from_being_watched(monkeypatch):
    """A mount that hangs lets no look return: the death of all other apps would go unseen."""
    monkeypatch.setattr(trigger_watch, "_RELIEF_S", 0.01)
    over, now = threading.Event(), [0.0]
    looks = trigger_watch.SharedLooks(2, clock=lambda: now[0])

    async def watched() -> str | None:
        hang: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(looks.ask(n, lambda: over.wait(600))) for n in range(5)
        ]
        await asyncio.sleep(0.05)
        well = asyncio.ensure_future(looks.ask("well", lambda: "alive"))
        for _ in range(1_000):
            now[0] += 11  # and nobody asks anything more: each waits for what it has asked
            await asyncio.wait([well], timeout=0.05)
            if well.done():
                break
        told = well.result() if well.done() else None
        over.set()
        await asyncio.gather(well, *hang)
        return told

    assert asyncio.run(watched()) == "alive"
