"""An archive of the classes that Java has loaded, which a driver leaves for the next start.

Most of a start is Java loading and checking classes: an archive (class data sharing, JEP 350) takes
a third of its CPU away. A driver that has run for a while lets its own Java write one, and gives it
its name once it is whole, since Java does not survive a file that is cut off. One that Java did not
take, as after an upgrade, is removed: the start after that leaves another.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_eos.core.delivery.java import diagnosed
from airflow_eos.core.log import Log

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

log = Log(__name__)

_AFTER_S = 30.0
"""Seconds until a driver has loaded what a driver loads, and the first rows are through."""
_ROOM = 256 << 20
"""Bytes of the disk that have to be free: an archive of a driver has 50 to 120 MB."""
_PROPERTY = "airflow.eos.class.archive"
_SHARED = "-XX:SharedArchiveFile="


def archive_options(archive: Path) -> str:
    """Return Java's options to start with ``archive`` where it is there, and else to leave it.

    Java goes on without an archive that does not fit, and without options that it does not know.
    Mapped where it was made for, most of its pages are shared by a driver and its standby; Java's
    own choice is another place in each process, which writes to them all.
    """
    options = [f"-D{_PROPERTY}={archive}", "-Xlog:cds*=off", "-XX:+IgnoreUnrecognizedVMOptions"]
    if archive.is_file():
        options += [f"{_SHARED}{archive}", "-Xshare:auto"]
        options += ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
    else:
        options += ["-XX:+RecordDynamicDumpInfo"]
    return shlex.join(options)


def leave_later(spark: SparkSession, *, is_watched: Callable[[], bool]) -> None:
    """Leave the archive in the background, where ``archive_options`` have named one.

    Not while ``is_watched`` by a standby: it would take a Java that stands still for a dead one.
    """
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the driver's Java
    named = gateway.jvm.java.lang.System.getProperty(_PROPERTY)
    if named is None:
        return
    timer = threading.Timer(_AFTER_S, _left_or_told, (gateway, Path(named), is_watched))
    timer.name, timer.daemon = "airflow-eos-class-archive", True
    timer.start()


def _left_or_told(gateway: JavaGateway, archive: Path, is_watched: Callable[[], bool]) -> None:
    try:
        if not is_watched():
            leave(gateway, archive)
    except Exception as error:  # noqa: BLE001 - the next start is slower, and that is all
        log.warning("no_class_archive", archive=str(archive), error=str(error))


def leave(gateway: JavaGateway, archive: Path) -> None:
    """Write the archive, or remove one that this Java was given and did not take.

    Java stands still while it writes, for some seconds.

    Raises:
        OSError: the file cannot be written, or the disk has too little room for it.
        Py4JError: Java refuses, or has ended.
    """
    options = list(
        gateway.jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    )
    if f"{_SHARED}{archive}" in options:
        if not _is_mapped(gateway, archive):
            archive.unlink(missing_ok=True)
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_name(f".{archive.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        with fresh.open("xb") as room:  # a Java that cannot write it whole ends, and the driver so
            os.posix_fallocate(room.fileno(), 0, _ROOM)
        fresh.unlink()
        # In quotes, since Java takes its arguments apart at blanks.
        said = diagnosed(gateway, "vmCds", "dynamic_dump", f'"{fresh.absolute()}"')
        if not fresh.exists():
            raise OSError(f"Java wrote no archive: {said.strip()}")
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _is_mapped(gateway: JavaGateway, archive: Path) -> bool:
    pid = gateway.jvm.java.lang.ProcessHandle.current().pid()
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except OSError:  # no Linux: not known, so it stays
        return True
    return str(archive.resolve()) in maps
