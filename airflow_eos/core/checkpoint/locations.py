"""Checkpoint locations, read as Hadoop's ``Path`` does, and backends on a disk or in a bucket.

Spark and we write into one folder, so its name has one reading, which is Hadoop's: nothing is
unescaped (``my%20data`` is a folder of that very name), slashes are collapsed, ``.`` and ``..`` are
resolved by the text. A location that Hadoop or its file systems would refuse, or read as something
else than the user can have meant, is refused here, before anything is written.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple
from urllib.parse import quote

import obstore
import obstore.exceptions as failures
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import from_url

from airflow_eos.core.checkpoint.backend import Content, require_readable
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.participant import same_location
from airflow_eos.errors import ConfigurationError, Remedy, StoreError


class LocalFiles:
    """The backend of a store on a disk: the folder ``root``, which may not exist yet.

    The folder is made by the first write only: looking at a mistyped path leaves nothing behind.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(
        self,
        path: str,
        file: bytes,
        *,
        mode: Literal["create", "overwrite"],
        durable: bool = True,
    ) -> object:
        """Write the whole object or nothing; on return it survives a power cut, if ``durable``.

        Raises:
            AlreadyExistsError: ``mode`` is create and the object is there.
            OSError: the disk refused.
        """
        target = self.root / path
        new = list(takewhile(lambda it: not it.exists(), (self.root, *self.root.parents)))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not the target's name with a suffix: that name may be as long as a name can be.
        staged = target.parent / f".{uuid.uuid4().hex}.tmp"
        try:
            with staged.open("xb") as out:
                out.write(file)
                out.flush()
                if durable:
                    os.fsync(out.fileno())
            if mode == "create":
                # link, unlike rename, refuses to replace what is there.
                target.hardlink_to(staged)
            else:
                staged.replace(target)
        except FileExistsError as error:
            raise AlreadyExistsError(f"{path} already exists") from error
        finally:
            staged.unlink(missing_ok=True)
        if durable:
            self.sync_folders(path)
            for folder in new:
                sync(folder.parent)
        return None

    def get(self, path: str) -> Content:
        """Read the object; FileNotFoundError when absent, IsADirectoryError for a folder."""
        return Content(_content(self.root / path))

    def head(self, path: str) -> dict[str, Any]:
        """Return size and time of the object; FileNotFoundError when absent. Errors as ``get``."""
        at = self.root / path
        found = at.stat()
        _require_file(at, found)
        return _meta(path, found)

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        """List objects and folders directly under ``prefix``; FileNotFoundError when absent."""
        objects: list[dict[str, Any]] = []
        folders: list[str] = []
        with os.scandir(self.root / prefix) as entries:
            for entry in entries:
                path = f"{prefix}/{entry.name}"
                if entry.is_dir():
                    folders.append(path)
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    objects.append(_meta(path, entry.stat()))
        return {"common_prefixes": folders, "objects": objects}

    def delete(self, paths: str) -> None:
        """Delete one object; FileNotFoundError when absent."""
        (self.root / paths).unlink()

    def get_range(self, path: str, first: int, until: int) -> bytes:
        """Return the bytes from ``first`` up to ``until``, excluded; errors as ``get``."""
        with _regular(self.root / path) as (opened, _):
            return os.pread(opened, until - first, first)

    def list_below(self, prefix: str) -> list[dict[str, Any]]:
        """List the file, or all files below the folder; a symbolic link is nobody's work."""
        at = self.root / prefix
        if at.is_symlink():
            return []
        below = os.walk(at, onerror=_raise_unless_gone)
        files = [Path(top) / name for top, _, names in below for name in names] or [at]
        listed: list[dict[str, Any]] = []
        for file in files:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed meanwhile
                found = file.lstat()
                if stat.S_ISREG(found.st_mode):
                    listed.append(_meta(file.relative_to(self.root).as_posix(), found))
        return listed

    def settle(self, path: str) -> None:
        """Sync a file that was written, and the names of its folders."""
        sync(self.root / path)
        self.sync_folders(path)

    def publish(self, source: str, target: str) -> None:
        """Link the file; FileNotFoundError: it is gone, FileExistsError: another is in the way."""
        visible = self.root / target
        self._make(visible.parent)
        try:
            visible.hardlink_to(self.root / source)
        except FileExistsError:  # linked before, by us or another process
            if not visible.samefile(self.root / source):
                raise

    def _make(self, folder: Path) -> None:
        """Create a folder and its parents, but never the first: without it, a disk is missing."""
        if folder.parent != self.root:
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)

    def exists(self) -> bool:
        """Whether the folder ``root`` exists already."""
        return self.root.exists()

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder if it is empty; object stores have no folders, disks do."""
        with contextlib.suppress(OSError):
            (self.root / prefix).rmdir()

    def sync(self, *paths: str) -> None:
        """Make objects durable that another process may just have written, not yet synced.

        So is the sum that Hadoop writes beside each of its files, without which it reads none.
        """
        for path in paths:
            folder, name = posixpath.split(path)
            for each in (path, posixpath.join(folder, f".{name}.crc")):
                with contextlib.suppress(FileNotFoundError):
                    sync(f"{self.root}/{each}")
        self.sync_folders(*paths)

    def sync_folders(self, *paths: str) -> None:
        """Sync every folder from the objects' own up to the root: any of them may be new."""
        above = {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
        for folder in sorted(above | {""}, reverse=True):  # the deepest first
            with contextlib.suppress(FileNotFoundError):
                sync(f"{self.root}/{folder}")


TAIL_BYTES = 1 << 16


def tail_of(last: bytes) -> int:
    """Return the sum of the last :data:`TAIL_BYTES` of a file.

    A Parquet file says there where each of its columns lies and what it ranges over: another file
    of the same size has other bytes. Of a small file they are all.
    """
    return zlib.crc32(last)


def make_durable(file: Path) -> None:
    """Sync the file and its folder, so that content and name survive a power cut."""
    sync(file)
    sync(file.parent)


def sync(path: str | Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _meta(path: str, found: os.stat_result) -> dict[str, Any]:
    modified = datetime.fromtimestamp(found.st_mtime, UTC)
    return {"path": path, "size": found.st_size, "last_modified": modified}


# --- errors of the store --------------------------------------------------------------------------
# A panic of obstore's Rust code arrives as ``PanicException``, a BaseException that no handler of
# errors sees: it would end a driver past everything that is done for a store that fails.


_DENIED = re.compile(
    r"status code: 40[13]\b|<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>", re.ASCII
)
"""A refusal in obstore's words for an answer of a server. S3 says by a status 400 that a token has
expired; and of a listing that is refused, in any cloud, obstore itself says no more than that."""


@contextmanager
def as_meant() -> Iterator[None]:
    """Translate a panic of obstore into its GenericError, a refusal into PermissionDeniedError."""
    try:
        yield
    except GenericError as error:
        if _DENIED.search(str(error)):
            raise PermissionDeniedError(str(error)) from error
        raise
    except BaseException as error:
        # pyo3 makes the class when it is first needed; there is nothing to import.
        if type(error).__name__ != "PanicException":
            raise
        raise GenericError(f"obstore panicked: {error}") from error


@contextmanager
def _regular(path: Path) -> Iterator[tuple[int, int]]:
    """Open a regular file, with its size; wait for no pipe, and read no device for ever."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(opened)
        _require_file(path, found)
        yield opened, found.st_size
    finally:
        os.close(opened)


def _content(path: Path) -> bytes:
    with _regular(path) as (opened, size):
        require_readable(str(path), size)
        with open(opened, "rb", closefd=False) as file:
            return file.read()


def _require_file(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path} is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is no file")


class Guarded:
    """An obstore backend whose panics are errors."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return repr(self._backend)

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        """See :class:`Backend`."""
        with as_meant():
            return self._backend.put(path, file, mode=mode)

    def get(self, path: str) -> Content:
        """See :class:`Backend`; the object is read to its end here, where a panic is seen."""
        with as_meant():
            found = self._backend.get(path)
            require_readable(path, found.meta["size"])
            return Content(found.bytes())

    def get_range(self, path: str, first: int, until: int) -> bytes:
        """Return the bytes of an object from ``first`` up to ``until``, excluded."""
        with as_meant():
            return bytes(obstore.get_range(self._backend, path, start=first, end=until))

    def head(self, path: str) -> Any:
        """See :class:`Backend`."""
        with as_meant():
            return self._backend.head(path)

    def list_with_delimiter(self, prefix: str | None) -> Any:
        """See :class:`Backend`."""
        with as_meant():
            return self._backend.list_with_delimiter(prefix)

    def delete(self, paths: str) -> None:
        """See :class:`Backend`."""
        with as_meant():
            self._backend.delete(paths)

    def upload(self, path: str, file: BinaryIO) -> None:
        """Upload a file, in parts where it is large; the object is there whole or not at all."""
        with as_meant():
            obstore.put(self._backend, path, file, mode="overwrite")

    def copy_if_absent(self, source: str, target: str) -> None:
        """Copy an object on the server; AlreadyExistsError, FileNotFoundError (of the source)."""
        with as_meant():
            obstore.copy(self._backend, source, target, overwrite=False)

    def list_below(self, prefix: str) -> list[Any]:
        """List the object, and all objects below it."""
        with as_meant():
            below = [meta for part in obstore.list(self._backend, prefix) for meta in part]
            with contextlib.suppress(FileNotFoundError):
                below.append(self._backend.head(prefix))
            return below

    def publish(self, source: str, target: str) -> None:
        """Copy an object on the server; FileNotFoundError: of ``source``.

        Not an upload in parts that the commit completes: no public function of obstore completes
        another process's, and a store may drop one after some days. A copy sends no bytes through
        here; its last request carries ``If-None-Match: *``, so the second copy is refused. One that
        was cut short leaves parts behind, as any upload does: a rule of the bucket
        (AbortIncompleteMultipartUpload) removes them.

        Raises:
            OSError: the name was refused, and nothing is there.
        """
        try:
            self.copy_if_absent(source, target)
        except AlreadyExistsError:  # copied before, by us or another process
            try:
                self.head(target)
            except FileNotFoundError:
                raise OSError(
                    f"{target} is taken, and nothing is there: another process may be about to "
                    "publish it"
                ) from None

    def remove_folder(self, prefix: str) -> None:
        """Do nothing: a folder of a bucket is a part of names."""


# --- options --------------------------------------------------------------------------------------
# Storage options as a user writes them: obstore's configuration keys and its client options.
#
# obstore separates the two, users and other tools do not. Given as a configuration key, a client
# option such as ``aws_allow_http`` or ``timeout`` ends in a panic of its Rust code (0.12.1).


# obstore names its keys in stubs only, which do not exist at runtime; a test compares.
_CLIENT = """
    allow_http allow_invalid_certificates connect_timeout default_content_type http1_only
    http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle
    http2_max_frame_size http2_only pool_idle_timeout pool_max_idle_per_host proxy_url
    proxy_ca_certificate proxy_excludes randomize_addresses read_timeout root_certificate
    timeout user_agent
"""
CLIENT_OPTIONS = frozenset(_CLIENT.split())
# Only to name the nearest one: obstore itself decides what a configuration key is, aliases too.
CONFIGURATION_KEYS = {
    "aws_": """
        access_key_id aws_endpoint_url_s3 bucket checksum_algorithm conditional_put
        container_credentials_relative_uri container_credentials_full_uri
        container_authorization_token_file copy_if_not_exists default_region disable_tagging
        disable_bulk_delete endpoint imdsv1_fallback metadata_endpoint region request_payer
        role_arn role_session_name s3_express secret_access_key server_side_encryption
        session_token skip_signature sse_bucket_key_enabled sse_customer_key_base64
        sse_kms_key_id sts_endpoint unsigned_payload virtual_hosted_style_request
        web_identity_token_file
    """,
    "google_": """
        service_account service_account_key base_url bearer_token bucket application_credentials
        skip_signature
    """,
    "azure_": """
        account_name account_key client_id client_secret credential_type tenant_id
        authority_host sas_key token use_emulator use_fabric_endpoint encryption_key endpoint
        msi_endpoint object_id msi_resource_id federated_token_file use_azure_cli
        skip_signature container_name disable_tagging fabric_token_service_url
        fabric_workload_host fabric_session_token fabric_cluster_identifier
    """,
}
_PREFIX = {"s3": "aws_", "s3a": "aws_", "gs": "google_"}


class StorageOptions(NamedTuple):
    """Storage options, divided into obstore's configuration keys and its client options."""

    config: dict[str, str]
    client: dict[str, str]


def split(scheme: str, given: Mapping[str, str]) -> StorageOptions:
    """Divide options as obstore wants them; client options may carry the store's prefix too.

    Raises:
        StoreError: a client option is given twice, with the prefix and without.
    """
    options = StorageOptions({}, {})
    for key, value in given.items():
        name = _bare(scheme, key)
        if name not in CLIENT_OPTIONS:
            options.config[key] = value
        elif name in options.client:
            raise StoreError(f"The storage option {name} is given twice: expected it once.")
        else:
            options.client[name] = value
    return options


def unknown_options(scheme: str, unknown: Iterable[str]) -> str:
    """Name the options that obstore does not know, each with the nearest one that it knows."""
    known = [*CLIENT_OPTIONS, *CONFIGURATION_KEYS[prefix_of(scheme)].split()]
    named = []
    for key in unknown:
        nearest = get_close_matches(_bare(scheme, key), known, n=1)
        named.append(f"{key!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else ""))
    return ", ".join(named)


def _bare(scheme: str, key: str) -> str:
    return key.lower().removeprefix(prefix_of(scheme))


def prefix_of(scheme: str) -> str:
    """Return what the names of a store's own options begin with."""
    return _PREFIX.get(scheme, "azure_")


# --- locations ------------------------------------------------------------------------------------


log = Log(__name__)

LOCAL, HDFS = "file", "hdfs"
_REMOTE = frozenset({"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"})
_S3_COPY = "aws_copy_if_not_exists"
_USER_IS_THE_CONTAINER = frozenset({"abfs", "abfss"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Location:
    """A folder: ``authority`` is a bucket or name node, empty on a disk; ``path`` is absolute."""

    scheme: str
    authority: str
    path: str

    @property
    def local(self) -> Path | None:
        """The folder's path on this machine; None where the folder is on no disk."""
        return Path(self.path) if self.scheme == LOCAL else None

    @property
    def uri(self) -> str:
        """The location by the rules of URIs, with escapes: for readers of URIs, as obstore."""
        return f"{self.scheme}://{self.authority}{quote(self.path)}"

    @property
    def for_spark(self) -> str:
        """The location as Hadoop's ``Path`` takes it."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def __str__(self) -> str:
        """Return one text for one folder: what people see, and what claims of the folder say."""
        return self.path if self.scheme == LOCAL else self.for_spark.rstrip("/")


def text_of(location: str | os.PathLike[str]) -> str:
    """Return a location as text; Spark takes a Python path, too.

    Raises:
        StoreError: it is neither.
    """
    if isinstance(location, os.PathLike):
        return os.fspath(location)
    if not isinstance(location, str):
        raise _no_location(repr(location), "is no path", "write a path or a URL")
    return location


def located(location: str | os.PathLike[str]) -> Location:
    """Read a path or URL as Hadoop's ``Path`` does; a relative path is below the working folder.

    Raises:
        StoreError: Hadoop would refuse the location, or read it as what nobody can have meant.
    """
    location = text_of(location)
    _require_text(location)
    colon, slash = location.find(":"), location.find("/")
    if colon != -1 and (slash == -1 or colon < slash):
        scheme, rest = location[:colon].lower(), location[colon + 1 :]
        if _SCHEME.fullmatch(scheme) is None or not rest.startswith("/"):
            raise _no_location(
                location,
                "is a relative path for Python and a URL with a relative path for Hadoop",
                "write the absolute path, or put ./ before it",
            )
    else:
        scheme, rest = "", location
    authority = ""
    if rest.startswith("//"):
        authority, rest = _authority(rest)
    if not scheme and authority:
        raise _no_location(
            location,
            "begins with two slashes, by which Hadoop takes the first part of it for a host",
            "write one slash",
        )
    if not scheme and not rest.startswith("/"):
        rest = f"{Path.cwd()}/{rest}"
    found = Location(scheme or LOCAL, authority, _normalized(location, rest))
    if found.scheme == LOCAL:
        if authority:
            raise _no_location(
                location,
                "names a host, which Hadoop refuses",
                "write file:///absolute/path",
            )
    elif found.scheme in _REMOTE or found.scheme == HDFS:
        _require_remote(location, found)
    return found


KEPT = "a folder that outlives a restart of the machine"


def way_out_of_temporary(*, begun: bool) -> str:
    """Say how to leave a temporary folder: a pipeline that has ``begun`` keeps its checkpoint."""
    if begun:
        return "drain, move the checkpoint, then `airflow-eos disown PREFIX --moved`"
    return (
        "give another checkpointLocation before the first start: without its checkpoint a pipeline "
        "reads its input from the beginning, and delivers its rows again"
    )


def is_temporary(location: str) -> bool:
    """Whether the location is on a disk of which the system removes files by itself."""
    local = located(location).local
    if local is None:
        return False
    emptied = {tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run"}  # noqa: S108
    return any(local.resolve().is_relative_to(Path(each).resolve()) for each in emptied)


def require_outside(location: str, folder: str, *, hidden: bool) -> None:
    """Refuse a checkpoint in a folder of data: its readers, or its cleaner, take all for data.

    Args:
        hidden: whether readers and cleaner pass over names that begin with ``_`` or a dot.

    Raises:
        ConfigurationError: the checkpoint is in that folder.
    """
    inside, data = (
        PurePosixPath(found.local.resolve() if found.local else same_location(str(found)))
        for found in (located(location), located(folder))
    )
    if not inside.is_relative_to(data):
        return
    if hidden and any(part[0] in "_." for part in inside.relative_to(data).parts):
        return
    raise ConfigurationError(
        f"The checkpoint {location} is in the folder of data {folder}, whose readers would take "
        "its files for rows, or whose cleaner would remove them as nobody's. Nothing was written.",
        Remedy(change="give one of them a place outside of the other", start=True),
    )


def as_local_path(location: str) -> Path | None:
    """Return the absolute path of a location on a disk; None for every other location."""
    return located(location).local


def _require_text(location: str) -> None:
    if not location or "\0" in location:
        raise _no_location(location, "is no path", "write a path or a URL")
    try:
        location.encode()
    except UnicodeEncodeError as error:
        raise _no_location(
            location, "is no UTF-8 text, which a JVM cannot name", "choose a folder named in UTF-8"
        ) from error


def _authority(rest: str) -> tuple[str, str]:
    end = rest.find("/", 2)
    return (rest[2:], "/") if end == -1 else (rest[2:end], rest[end:])


def _normalized(location: str, path: str) -> str:
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in {"", "."}
        if depth < 0:
            raise _no_location(location, "leaves its root by '..'", "write the absolute path")
    return posixpath.normpath("/" + path.lstrip("/"))


def _require_remote(location: str, found: Location) -> None:
    if "?" in location or "#" in location:
        raise _no_location(
            location,
            "has '?' or '#' in it, which Hadoop takes for a part of the folder's name",
            "leave the query or fragment away, and give credentials as storage options",
        )
    if found.scheme != HDFS and not found.authority:
        raise _no_location(location, "names no bucket", f"write {found.scheme}://bucket/folder")
    # As text, since a secret may have a slash: by the rules of URLs, the rest of it is in the path.
    is_user = "@" in found.authority and found.scheme not in {HDFS, *_USER_IS_THE_CONTAINER}
    if is_user or _LOGIN.match(location):
        raise _no_location(
            location,
            "holds a login, which Hadoop refuses",
            "take it out of the location, and give it as storage options",
        )


def _no_location(location: str, why: str, change: str) -> StoreError:
    return StoreError(
        f"{printable(location)!r} is not a checkpoint location: it {why}. Expected a path or URL "
        "that Spark reads as we do. Nothing was written.",
        Remedy(change=change, start=True),
    )


def open_remote(location: str, storage_options: Mapping[str, str] | None) -> Any:
    """Open an obstore store for the URL; nothing is contacted yet.

    Raises:
        StoreError: a scheme that has no create-if-absent from Python, or options that obstore
            does not know or cannot use.
    """
    found = located(location)
    scheme, uri = found.scheme, found.uri
    if scheme not in _REMOTE:
        raise StoreError(
            f"{printable(location)}: a checkpoint on {scheme}:// cannot be used from here. "
            "Expected a store that can create an object only if it is absent: a local path or "
            "file://, s3:// (s3a://), gs://, az://, abfss:// or hdfs://. A mounted HDFS has no "
            "hard links: use its hdfs:// location."
        )
    _refuse_after_fork(printable(location))
    options = split(scheme, storage_options or {})
    if scheme in {"s3", "s3a"} and not any(map(_S3_COPY.endswith, options.config)):
        options.config[_S3_COPY] = "multipart"  # S3 copies if absent in no other way
    allowed = os.environ.get(f"{prefix_of(scheme)}allow_http".upper())  # as deltalake reads it
    if allowed is not None:
        options.client.setdefault("allow_http", allowed)
    if options.client.get("allow_invalid_certificates", "false").lower() != "false":
        log.warning(
            "tls_not_verified",
            setting="allow_invalid_certificates",
            checkpoint=printable(location),
            hint="anybody on the way can read and change it; give root_certificate instead",
        )
    try:
        return Guarded(_opened(uri, options))
    except failures.UnknownConfigurationKeyError as error:
        unknown = [key for key in options.config if not _is_known(uri, key)]
        raise StoreError(
            f"{printable(location)} cannot be opened: unknown storage options "
            f"{unknown_options(scheme, unknown)}. Expected configuration keys or client options "
            "of obstore."
        ) from error
    except (failures.BaseError, ValueError, TypeError, OSError) as error:
        said = brief(error)
        for value in (storage_options or {}).values():
            said = said.replace(f'"{value}"', '"***"')  # a secret, maybe, under a wrong name
        raise StoreError(
            f"{printable(location)} cannot be opened: {said}. Expected a URL and "
            f"storage options that obstore knows; the options given: "
            f"{', '.join(sorted(storage_options or {})) or 'none'}."
        ) from error


def _opened(location: str, options: StorageOptions) -> Any:
    with as_meant():
        return from_url(location, config=options.config, client_options=options.client)  # type: ignore[call-overload]


def _is_known(location: str, key: str) -> bool:
    """Whether obstore knows the key at all, be its value right or wrong."""
    try:
        _opened(location, StorageOptions({key: ""}, {}))
    except failures.UnknownConfigurationKeyError:
        return False
    except failures.BaseError:
        return True
    return True


_opened_by: list[int] = []


def _refuse_after_fork(location: str) -> None:
    """Refuse a forked child: obstore's threads do not exist there, so it would wait for ever."""
    if _opened_by and os.getpid() not in _opened_by:
        raise StoreError(
            f"{location}: this process was forked from one that had already used an object store, "
            "and would hang. Open checkpoints in the child only, or start it by 'spawn'."
        )
    _opened_by[:] = [os.getpid()]


_LOGIN = re.compile(
    r"^(?!hdfs://[^/@]*/)((?:[a-z][a-z0-9+.-]*:(?=/))?+/*+[^/@:]*):.*@",
    re.ASCII | re.DOTALL | re.IGNORECASE,
)
"""The pattern of a login up to the last @: a secret has any character, and a bucket's name no @.

The port of a name node is none, whatever follows it.
"""


def printable(location: str) -> str:
    """Return the location without a password or a signature: it ends up in logs and plans."""
    if location.startswith("/") and not location.startswith("//"):
        return location  # of a path, they are a part
    return _LOGIN.sub(r"\1:***@", location).partition("?")[0].partition("#")[0]


_MACHINES_OWN = re.compile(
    r"//(169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal)[/:]", re.ASCII
)
"""Addresses where a machine in a cloud asks for its keys; one that has others never asks there."""
_KEYS = {
    "aws_": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "google_": "GOOGLE_APPLICATION_CREDENTIALS",
    "azure_": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def lacking_keys(location: str, error: Exception) -> Remedy | None:
    """Return how to give a store its keys, where the error says that it had none; else None."""
    if _MACHINES_OWN.search(str(error)) is None:
        return None
    keys = _KEYS[prefix_of(located(location).scheme)]
    return Remedy(
        change=f"set {keys} in the environment of this command, or in Airflow give storage_conn_id"
    )


def said_code(error: Exception | None) -> str:
    """Return a store's own word for what is wrong, such as ``ExpiredToken``; empty: it has none."""
    found = re.search(r"<Code>(\w+)</Code>", str(error), re.ASCII)
    return found[1] if found else ""


def brief(error: Exception | None) -> str:
    """Return the first line of a store's error, without the signed part of a URL, and its code.

    Amazon has the code in a second line, behind one that says only that it is XML.
    """
    first = str(error).strip().partition("\n")[0] if error is not None else "no answer"
    unsigned = re.sub(r"[?][^\s)]+", "?***", first.partition("<?xml")[0].rstrip(": "))
    code = said_code(error)
    return f"{type(error).__name__}: {unsigned}" + (f" ({code})" if code not in unsigned else "")
