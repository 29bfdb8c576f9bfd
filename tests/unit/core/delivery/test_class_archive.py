"""A driver leaves the classes of its Java for the next start; nothing of it can break a start."""

from __future__ import annotations

import shlex
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from airflow_eos.core.delivery import class_archive
from airflow_eos.core.delivery.class_archive import archive_options, leave, leave_later
from airflow_eos.local.jars import java_program
from tests.support.jvm import java
from tests.support.stores import disk_of


def is_taken(gateway, archive):
    pid = gateway.jvm.java.lang.ProcessHandle.current().pid()
    return str(archive) in Path(f"/proc/{pid}/maps").read_text()


def test_the_next_java_maps_what_the_first_one_has_left(tmp_path):
    archive = tmp_path / "made by first" / "driver.jsa"
    with java(archive_options(archive)) as first:
        leave(first, archive)
    assert [each.name for each in archive.parent.iterdir()] == ["driver.jsa"]
    with java(archive_options(archive)) as second:
        assert is_taken(second, archive)
        leave(second, archive)
        assert archive.exists(), "one that Java has taken stays"


def test_what_is_mapped_of_an_archive_is_shared_by_two_drivers(tmp_path):
    archive = tmp_path / "driver.jsa"
    with java(archive_options(archive)) as first:
        leave(first, archive)
    with java(archive_options(archive)) as second:
        pid = second.jvm.java.lang.ProcessHandle.current().pid()
        maps = psutil.Process(pid).memory_maps(grouped=True)
        [found] = [each for each in maps if each.path == str(archive)]
        assert found.private_dirty < found.rss / 2


def test_an_archive_that_java_did_not_take_is_removed_and_left_anew(tmp_path):
    archive = tmp_path / "driver.jsa"
    archive.write_bytes(b"of another Java")
    with java(archive_options(archive)) as start:
        assert not is_taken(start, archive)
        leave(start, archive)
        assert not archive.exists()
    with java(archive_options(archive)) as start:
        leave(start, archive)
    with java(archive_options(archive)) as start:
        assert is_taken(start, archive)


def test_an_archive_has_its_name_only_once_java_has_written_it_whole(tmp_path, monkeypatch):
    archive = tmp_path / "driver.jsa"

    def cut_off(_gateway, _command, _what, name):
        Path(name.strip('"')).write_bytes(b"half")
        raise OSError("killed")

    monkeypatch.setattr(class_archive, "diagnosed", cut_off)
    with java(archive_options(archive)) as start, pytest.raises(OSError, match="killed"):
        leave(start, archive)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_it_costs_the_archive_and_not_the_driver(tmp_path):
    """Java ends itself over an archive that it cannot write: 30 s after each start."""
    with disk_of("128k", tmp_path / "disk") as small:
        archive = small / "driver.jsa"
        with java(archive_options(archive)) as driver:
            with pytest.raises(OSError, match="No space left on device"):
                leave(driver, archive)
            assert driver.jvm.java.lang.System.getProperty("java.version")
        assert list(small.iterdir()) == []


def test_a_java_that_knows_no_such_archive_starts_all_the_same(tmp_path):
    archive = tmp_path / "driver.jsa"
    options = archive_options(archive).replace("RecordDynamicDumpInfo", "ThereIsNoSuchOption")
    with java(options) as start, pytest.raises(OSError, match="wrote no archive"):
        leave(start, archive)
    subprocess.run([java_program(), *shlex.split(options), "-version"], check=True, timeout=60)


def timer_of(gateway, monkeypatch, *, is_watched):
    """What a driver behind ``gateway`` does after a while; None: nothing."""
    timers = []
    monkeypatch.setattr(threading.Timer, "start", lambda each: timers.append(each))
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
    leave_later(cast(SparkSession, spark), is_watched=lambda: is_watched)
    return timers[0] if timers else None


def test_a_driver_leaves_it_after_a_while_and_tells_where_it_cannot(tmp_path, monkeypatch):
    in_a_file = tmp_path / "file"
    in_a_file.write_text("")
    archive = in_a_file / "driver.jsa"
    with java(archive_options(archive)) as gateway, capture_logs() as lines:
        timer = timer_of(gateway, monkeypatch, is_watched=False)
        timer.function(*timer.args)
    assert timer.interval == 30
    assert [line["event"] for line in lines] == ["no_class_archive"]


@pytest.mark.parametrize("is_watched", [True, False])
def test_java_does_not_stand_still_before_the_eyes_of_a_standby(tmp_path, monkeypatch, is_watched):
    archive = tmp_path / "driver.jsa"
    with java(archive_options(archive)) as gateway:
        timer = timer_of(gateway, monkeypatch, is_watched=is_watched)
        timer.function(*timer.args)
    assert archive.exists() is not is_watched


def test_a_driver_that_was_told_of_none_leaves_none(monkeypatch):
    with java("-Xshare:auto") as gateway:
        assert timer_of(gateway, monkeypatch, is_watched=False) is None
