"""Packages for an app: a Python environment, this package, and a folder with the app's secrets.

The environment is one file, for executors on which nothing of ours is installed. Spark unpacks it
by itself beside each executor::

    spark-submit --conf spark.archives=environment.tar.gz#environment \
        --conf spark.pyspark.python=./environment/bin/python \
        --conf spark.pyspark.driver.python=python3 ...

(Without the last option, a driver in client mode would look for the archive's interpreter, too.)

The environment copies the interpreter that runs here, with its standard library, our Spark side and
its dependencies; nothing is fetched. It runs where the system's libraries (libc, OpenSSL, libffi)
are those of here or newer: build it on the image, or the release of the system, that executors run.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from airflow_eos.core.settings import SECRET_FILES
from airflow_eos.errors import ConfigurationError, Remedy

OURS = "airflow-provider-eos"
_NEVER = ("..", "/", "pyarrow/tests/", "pyarrow/include/")
_FOR_COMPILERS = (".pyc", ".pyi", ".pyx", ".pxd", ".a", ".h", ".hpp")
_SPARKS_OWN = frozenset({"pyspark", "pyspark-client", "py4j"})
"""Distributions that each executor has from its Spark; a copy could be another version."""


def needed(
    extras: Sequence[str] = (), also: Sequence[str] = ()
) -> dict[str, metadata.Distribution]:
    """Return the distributions that our package requires, and those they require, without it.

    What is installed here is taken, so executors get the versions that this environment has.

    Args:
        extras: extras of our package, such as ``postgres``.
        also: further installed distributions, such as what the functions of an app import.

    Returns:
        By normalised name, in alphabetical order.

    Raises:
        ConfigurationError: an extra that we do not have, or a distribution that is not installed.
    """
    ours = _installed(OURS, wanted_by="this command")
    provided = set(ours.metadata.get_all("Provides-Extra") or ())
    if unknown := sorted(set(extras) - provided):
        raise ConfigurationError(
            f"{OURS} has no extra {', '.join(unknown)}; it has {', '.join(sorted(provided))}. Name "
            "another distribution with --also."
        )
    found: dict[str, metadata.Distribution] = {}
    asked = [(name, wished, OURS) for name, wished in _required(ours, extras)]
    asked += [(name, (), "--also") for name in also]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while asked:
        name, wished, by = asked.pop()
        if (name := _normal(name)) in _SPARKS_OWN or (name, wished) in seen:
            continue
        seen.add((name, wished))
        if name == OURS:
            asked += [(*each, OURS) for each in _required(ours, wished)]
            continue
        found[name] = _installed(name, wanted_by=by)
        asked += [(*each, name) for each in _required(found[name], wished)]
    return dict(sorted(found.items()))


def files_of(distribution: metadata.Distribution) -> dict[str, Path]:
    """Return the files that a distribution put into ``site-packages``, by their path there.

    Raises:
        ConfigurationError: a distribution lists no files, or was installed from a source folder.
    """
    name = distribution.metadata["Name"]
    listed = distribution.files
    if not listed or _is_editable(distribution):
        raise ConfigurationError(
            f"{name} does not list its files, or is installed in editable mode; what travels "
            f"to executors comes from a wheel. Try: pip install --force-reinstall {name}"
        )
    # Leave out programs, which name this interpreter, and files that only compilers and tests read.
    paths = {file.as_posix(): Path(str(file.locate())) for file in listed}
    kept = {
        path: file
        for path, file in paths.items()
        if not path.startswith(_NEVER) and not path.endswith(_FOR_COMPILERS)
    }
    lost = [path for path in kept.values() if not path.is_file()]
    if lost:
        raise ConfigurationError(
            f"{name} lists {lost[0]}, which is not there ({len(lost)} such files): "
            "install it again."
        )
    return kept


def _is_editable(distribution: metadata.Distribution) -> bool:
    """Whether a distribution is editable (PEP 660, PEP 610): its files are then its sources."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _required(
    distribution: metadata.Distribution, extras: Iterable[str]
) -> list[tuple[str, tuple[str, ...]]]:
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The package 'packaging' is needed to read what distributions require, and is not "
            "installed: pip install packaging"
        ) from error
    found = []
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append((requirement.name, tuple(sorted(requirement.extras))))
    return found


def _installed(name: str, *, wanted_by: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"{name}, which {wanted_by} requires, is not installed in this environment, from which "
            f"executors get what they need: pip install {name}"
        ) from None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- archive --------------------------------------------------------------------------------------
# The Spark side needs neither Airflow nor an installation of this package on every node: the zip
# travels with the app. Its dependencies (see ``pyproject.toml``) must be on the executors.


_DRIVER_AND_EXECUTORS = (
    "arrow",
    "core",
    "kafka",
    "kinds",
    "ops/audit",
    "sinks",
)
_NOT_THERE = (
    "__main__.py",
    "events.py",
    "get_provider_info.py",
    "links.py",
    "notifications.py",
)
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold: the same sources give the same bytes."""


def build_archive(path: Path) -> Path:
    """Write the modules that run inside Spark to ``path`` (.zip); return it; always equal bytes.

    Raises:
        ConfigurationError: The path is no .zip, or cannot be written.
    """
    if path.suffix != ".zip":
        raise ConfigurationError(f"{path}: Spark takes Python packages as .zip; name it so.")
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in spark_side().items():
                entry = zipfile.ZipInfo(name, _LONG_AGO)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    return path


def spark_side() -> dict[str, Path]:
    """Return the files of this package that run inside Spark, by their name in an archive."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(set(root.glob("*.py")) - {root / name for name in _NOT_THERE})
    files += [root / "ops" / "__init__.py", root / "ops" / "figures.py"]
    for room in _DRIVER_AND_EXECUTORS:
        files += sorted((root / room).rglob("*.py"))
    return {file.relative_to(root.parent).as_posix(): file for file in files}


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
    """An environment archive that was written.

    Attributes:
        packed, unpacked: size of the archive, and of its files; bytes.
        distributions: name and version of each distribution in the archive, beside ours.
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
        extras: extras of our package, such as ``postgres``.
        also: further distributions that are installed here.
        progress: called with the bytes packed so far, and the total.

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
        _pack(draft, files, lambda done: progress(done, unpacked))
        packed = draft.stat().st_size
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
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
    """Return the files of the interpreter: program, shared library (if any), standard library."""
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
    """Return the interpreter's package folder below its prefix; distributions of Linux differ."""
    asked = "import site, sys; print(sys.prefix, *site.getsitepackages(), sep='\\n')"
    said = subprocess.run(
        [str(_program()), "-I", "-c", asked], capture_output=True, text=True, check=True
    )
    prefix, *folders = said.stdout.splitlines()
    found = next(Path(each) for each in folders if Path(each).is_relative_to(prefix))
    return found.relative_to(prefix).as_posix()


PACKAGE = "airflow_eos.zip"
_KEPT = ".kept"


@contextmanager
def private_folder(checkpoint_location: str) -> Iterator[Path]:
    """Make a folder that only this user may enter, and remove it with its contents at the end.

    Where SIGKILL ends this process the folder stays, until :func:`remove_leftovers` is called for
    the same checkpoint. The lock says that the folder is in use, and ends with the process.
    """
    folder = Path(tempfile.mkdtemp(prefix=_prefix(checkpoint_location)))
    try:
        with _locked(folder):
            yield folder
    finally:
        if not (folder / _KEPT).exists():
            shutil.rmtree(folder, ignore_errors=True)


def leave_behind(folder: Path) -> None:
    """Keep the folder although this process ends: an app that lives on needs its files.

    :func:`remove_leftovers` of a later task on this machine removes it.
    """
    (folder / _KEPT).touch()


def remove_leftovers(folder: Path, checkpoint_location: str) -> None:
    """Remove the folders that killed tasks left for the same checkpoint, beside ``folder``.

    Call only when no driver of the pipeline is alive any more: it may still need the package.
    """
    for other in folder.parent.glob(f"{_prefix(checkpoint_location)}*"):
        try:
            found = other.lstat()
            if other == folder or other.is_symlink() or found.st_uid != os.getuid():
                continue
            with _locked(other):
                shutil.rmtree(other)
        except OSError:  # in use, or already removed by somebody else
            continue


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secret settings of an app.

    Attributes:
        kafka: librdkafka's configuration.
        participants: connection settings of the other participants, by name or kind.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    storage: Mapping[str, str] = field(repr=False)
    participants: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def hand_over(self, folder: Path) -> dict[str, str]:
        """Write the files for one start, for this user only (0600); return where they are.

        ``airflow_eos.sinks.app`` removes them once it has read them. So they are written anew for
        each start, and live for the seconds that a driver needs to come up.
        """
        contents = {name: getattr(self, name) for name in SECRET_FILES}
        return {
            SECRET_FILES[name]: write_private(folder / f"{name}.json", json.dumps(dict(content)))
            for name, content in contents.items()
            if content or name == "kafka"
        }


def _prefix(checkpoint_location: str) -> str:
    """Return the folder-name prefix by which a later task knows the folder's checkpoint."""
    return f"airflow-eos-{hashlib.sha256(checkpoint_location.encode()).hexdigest()[:16]}-"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; OSError where another process does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def write_private(path: Path, text: str) -> str:
    """Write a new file that only this user may read; returns its path."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return str(path)


# --- content --------------------------------------------------------------------------------------
# What the files hold that an app is submitted with: a person has approved that, and no path.


_NAME_FILES = ("spark.submit.pyFiles", "spark.files", "spark.jars", "spark.archives")


def local_files(application: str, *lists: str | None) -> list[str]:
    """Return the app and what ``lists`` name, comma-separated, of this machine's files."""
    named = [application, *(name for each in lists if each for name in each.split(","))]
    return [name for name in named if ":" not in name or name.startswith("file:")]


def content_of(application: str, *, conf: Mapping[str, str] | None, **lists: str | None) -> str:
    """Return the digests of the app's files on this machine, by path, as JSON; the app's is first.

    Args:
        conf: Spark properties, some of which name files.
        lists: comma-separated ``py_files``, ``files``, ``jars``, ``archives``.

    Raises:
        ConfigurationError: a file cannot be read here.
    """
    if not local_files(application):
        raise ConfigurationError(
            f"{application} is no file of this worker, so which version it holds is not known. "
            "Nothing was started."
        )
    by_conf = ((conf or {}).get(each) for each in _NAME_FILES)
    found: dict[str, str] = {}
    for name in local_files(application, *lists.values(), *by_conf):
        path = name.strip().removeprefix("file://").removeprefix("file:").partition("#")[0]
        folder, pattern = Path(path).parent, Path(path).name
        for each in sorted(folder.glob(pattern)) or [Path(path)]:
            try:
                found[str(each)] = hashlib.sha256(each.read_bytes()).hexdigest()
            except OSError as error:
                raise ConfigurationError(
                    f"{each}, a file of the app, cannot be read on this worker ({error}), so which "
                    "version it holds is not known. Nothing was started."
                ) from error
    return json.dumps(found)


def require_content(
    approved: str, application: str, *, conf: Mapping[str, str] | None, **lists: str | None
) -> None:
    """Refuse files of another content than ``approved``, which :func:`content_of` gave.

    Raises:
        ConfigurationError: a file is another, or cannot be read.
    """
    before = json.loads(approved)
    found = json.loads(content_of(application, conf=conf, **lists))
    others = sorted(path for path in {*before, *found} if before.get(path) != found.get(path))
    if others:
        raise ConfigurationError(
            f"{', '.join(others)}: changed since it was rehearsed, or not among what was: nobody "
            "has approved what is there now. Nothing was started.",
            Remedy(change="put it back as it was rehearsed, and clear this task"),
            Remedy(change="start another run of the upgrade, which rehearses what is there now"),
        )
