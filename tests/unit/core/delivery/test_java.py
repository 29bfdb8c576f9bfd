"""A standby gives back what its warm-ups took, and its Java grows as ever once it drives."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest

from airflow_eos.core.delivery import standby
from airflow_eos.core.delivery.java import diagnosed, give_memory_back
from airflow_eos.core.delivery.start_option import Start
from tests.support.jvm import java


def heap_mib(gateway):
    """The heap that Java keeps."""
    return int(found(r"total (\d+)K", diagnosed(gateway, "gcHeapInfo"))) >> 10


def free_at_most(gateway):
    flags = diagnosed(gateway, "vmFlags", "-all")
    return [found(rf"{name}HeapFreeRatio\s*= (\d+)", flags) for name in ("Min", "Max")]


def found(pattern, text):
    [group] = re.findall(pattern, text)
    return group


def test_java_gives_back_what_it_keeps_and_may_grow_as_before():
    with java("-Xmx512m -XX:MinHeapFreeRatio=45 -XX:MaxHeapFreeRatio=90") as gateway:
        kept = [gateway.new_array(gateway.jvm.long, 10 << 17) for _ in range(4)]
        dropped = [gateway.new_array(gateway.jvm.long, 10 << 17) for _ in range(20)]
        for each in dropped:
            gateway.detach(each)
        assert heap_mib(gateway) >= 240
        give_memory_back(gateway)
        assert 40 <= heap_mib(gateway) <= 100
        assert free_at_most(gateway) == ["45", "90"]
        assert len(kept[0]) == 10 << 17


def resting(monkeypatch, trim, master="local-cluster[1,1,1024]"):
    """What a standby does after its warm-ups, and what came of it."""
    done: list[object] = []
    monkeypatch.setattr(standby, "give_memory_back", lambda java: done.append(f"all of {java}"))
    monkeypatch.setattr(standby, "trim", lambda java: done.append(trim(java)))
    start = SimpleNamespace(
        sink=SimpleNamespace(check=lambda _spark: done.append("asked")),
        spark=SimpleNamespace(sparkContext=SimpleNamespace(_gateway="Java", master=master)),
    )
    return standby.resting(cast(Start, start)), done


def test_a_standby_gives_memory_back_once_its_workers_are_warm(monkeypatch):
    act, done = resting(monkeypatch, lambda java: f"rest of {java}")
    for _ in range(4):
        act()
    asked = done[::2]
    assert asked == ["asked"] * 4
    assert done[1::2] == ["all of Java", "all of Java", "rest of Java", "rest of Java"]


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_a_standby_keeps_no_idle_workers_beside_it(monkeypatch, master):
    """Their daemon stays, which forks them again in no time: 60 MiB less for a small app."""
    act, done = resting(monkeypatch, lambda java: f"rest of {java}", master)
    for _ in range(3):
        act()
    assert done == ["all of Java", "all of Java", "rest of Java"]


def test_a_java_that_gives_nothing_back_is_asked_no_more(monkeypatch):
    """Else each round would warn of workers that are cold, which they are not."""

    def refused(_java):
        raise RuntimeError("no such command")

    act, done = resting(monkeypatch, refused)
    act(), act()
    with pytest.raises(RuntimeError):
        act()
    act()
    assert done[-2:] == ["asked", "asked"]
