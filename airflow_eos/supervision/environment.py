"""A Python environment as one file, for executors on which nothing of ours is installed.

Spark unpacks it by itself beside each executor::

    spark-submit --conf spark.archives=environment.tar.gz#environment \
        --conf spark.pyspark.python=./environment/bin/python \
        --conf spark.pyspark.driver.python=python3 ...

(Without the last, a driver of client mode would look for the archive's interpreter, too.)

It is a copy of the interpreter that runs here, with its standard library, our Spark side and what
that needs; nothing is fetched. It runs wherever the system's own libraries (libc, OpenSSL, libffi)
are those of here or newer: build it on the image, or the release of the system, that executors run.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_eos.errors import ConfigurationError
from airflow_eos.supervision.archive import spark_side
from airflow_eos.supervision.distributions import files_of, needed

_SUFFIXES = (".tar.gz", ".tgz")
_LEFT_OUT = {
    *("__pycache__", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo"),
    *("site-packages", "dist-packages"),  # of the interpreter; ours come from the environment
}
"""Folders of the standard library that no task imports."""

# The interpreter may have the folder of its shared library written into it, which is not there on
# an executor. A link named python would be resolved to the program, and lose its place.
_LAUNCHER = """\
#!/bin/sh
# Runs the interpreter beside it, wherever this folder was unpacked.
here=$(cd "$(dirname "$0")/.." && pwd -P) || exit 1
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
unset PYTHONHOME
exec "$here/bin/%s" "$@"
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """What was written.

    Attributes:
        path: of the archive.
        packed, unpacked: its size, and that of its files; bytes.
        distributions: name and version of each that is in it, beside ours.
    """

    path: Path
    packed: int
    unpacked: int
    distributions: tuple[tuple[str, str], ...]


def build_environment(
    path: Path,
    *,
    extras: Sequence[str] = (),
    also: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Environment:
    """Write the environment to ``path``; the same bytes for the same files, and all or nothing.

    Args:
        path: ends with ``.tar.gz``; a file that is there is replaced.
        extras: of our package, such as ``postgres``.
        also: further distributions that are installed here.
        progress: is told the bytes that were packed, and all of them.

    Raises:
        ConfigurationError: the name does not fit, the file cannot be written, or what is needed is
            not installed here.
    """
    if not path.name.endswith(_SUFFIXES):
        raise ConfigurationError(
            f"{path}: Spark unpacks an archive by its name: let it end with .tar.gz."
        )
    distributions = needed(extras, also)
    site = f"{_site_packages()}/"
    files = _interpreter()
    for distribution in distributions.values():
        files |= {site + name: file for name, file in files_of(distribution).items()}
    files |= {site + name: file for name, file in spark_side().items()}
    unpacked = sum(file.stat().st_size for file in files.values())
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            _pack(draft, files, lambda done: progress(done, unpacked))
            packed = draft.stat().st_size
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    versions = tuple((name, each.version) for name, each in distributions.items())
    return Environment(path, packed, unpacked, versions)


def _pack(draft: Path, files: dict[str, Path], packed: Callable[[int], None]) -> None:
    done = 0
    launcher = (_LAUNCHER % _program().name).encode()
    with (
        draft.open("xb") as raw,
        # Neither a name nor a time in its head: both would differ from build to build.
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packer,
        tarfile.open(fileobj=packer, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in ("bin/python", "bin/python3"):
            archive.addfile(_entry(name, len(launcher), executable=True), io.BytesIO(launcher))
        for name, file in sorted(files.items()):
            executable = os.access(file, os.X_OK)
            with file.open("rb") as content:
                size = os.fstat(content.fileno()).st_size
                archive.addfile(_entry(name, size, executable=executable), content)
            done += size
            packed(done)


def _entry(name: str, size: int, *, executable: bool) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o755 if executable else 0o644
    return entry  # of user 0, at time 0


def _interpreter() -> dict[str, Path]:
    """The program, its shared library where it has one, and its standard library."""
    program = _program()
    stdlib = Path(sysconfig.get_path("stdlib"))
    prefix = Path(sys.base_prefix)
    files = {f"bin/{program.name}": program}
    shared = str(sysconfig.get_config_var("INSTSONAME") or "")
    for libraries in (prefix / "lib", Path(str(sysconfig.get_config_var("LIBDIR") or prefix))):
        if ".so" in shared and (libraries / shared).is_file():
            files[f"lib/{shared}"] = (libraries / shared).resolve()
    for folder, below, names in os.walk(stdlib):
        here = Path(folder)
        below[:] = [n for n in below if n not in _LEFT_OUT and not n.startswith("config-")]
        for name in names:
            if (here / name).is_file():  # a distribution's link may lead nowhere
                files[(here / name).relative_to(prefix).as_posix()] = here / name
    return files


def _program() -> Path:
    return Path(sys._base_executable).resolve()  # type: ignore[attr-defined]  # noqa: SLF001


def _site_packages() -> str:
    """Where the interpreter looks for packages, below its prefix; distributions of Linux differ."""
    asked = "import site, sys; print(sys.prefix, *site.getsitepackages(), sep='\\n')"
    said = subprocess.run(
        [str(_program()), "-I", "-c", asked], capture_output=True, text=True, check=True
    )
    prefix, *folders = said.stdout.splitlines()
    return (
        Path(next(f for f in folders if Path(f).is_relative_to(prefix)))
        .relative_to(prefix)
        .as_posix()
    )
