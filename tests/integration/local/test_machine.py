"""A machine that is lost takes all with it, also what has left its group and its session."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from tests.support.servers.standalone import Machine

PROGRAM = """
import os, pathlib, subprocess, sys, time
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
home = os.environ["HOME"]
own_group = subprocess.Popen(sleep, process_group=0, cwd="/")
own_session = subprocess.Popen(sleep, start_new_session=True, cwd=home)
found = [os.getpid(), own_group.pid, own_session.pid]
draft = pathlib.Path(home, "draft")
draft.write_text(" ".join(map(str, found)))
draft.rename(pathlib.Path(home, "pids"))
print(sorted(os.environ), flush=True)
time.sleep(600)
"""


@pytest.fixture
def machine():
    made = Machine("tried")
    yield made
    made.close()


def test_a_lost_machine_leaves_no_process_and_a_disk(machine: Machine, monkeypatch):
    monkeypatch.setenv("A_SETTING_OF_OURS", "1")
    pids = machine.folder / "pids"
    machine.run([sys.executable, "-c", PROGRAM], pids.exists, env={"GIVEN": "1"})
    mine = [int(pid) for pid in pids.read_text().split()]
    assert set(mine) < set(machine.pids())
    assert "A_SETTING_OF_OURS" not in machine.log.read_text()
    assert "'GIVEN'" in machine.log.read_text()

    machine.lose()

    assert not [pid for pid in mine if _runs(pid)]
    assert machine.pids() == []
    assert pids.exists()
    machine.lose()


def test_its_disk_goes_with_it(machine: Machine):
    machine.run([sys.executable, "-c", PROGRAM], (machine.folder / "pids").exists)
    folder = machine.folder
    machine.close()
    assert not folder.exists()


def _runs(pid: int) -> bool:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.05)
    return True
