"""Looks of all triggers of a process: a store that does not answer holds up nobody else's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_eos.supervision.trigger_watch import SharedLooks

pytestmark = pytest.mark.unit


def test_a_store_with_more_apps_than_threads_keeps_nobody_from_being_watched():
    """A mount that hangs lets no look return: the death of all other apps would go unseen."""
    over, now = threading.Event(), [0.0]
    looks = SharedLooks(2, clock=lambda: now[0])

    async def watched() -> str:
        hang = [asyncio.ensure_future(looks.ask(n, lambda: over.wait(600))) for n in range(5)]
        await asyncio.sleep(0.05)
        well = asyncio.ensure_future(looks.ask("well", lambda: "alive"))
        for n in range(1_000):
            now[0] += 11
            hang.append(asyncio.ensure_future(looks.ask(("later", n), lambda: None)))
            await asyncio.wait([well], timeout=0.05)
            if well.done():
                break
        over.set()
        await asyncio.gather(*hang)
        return well.result()

    assert asyncio.run(watched()) == "alive"
