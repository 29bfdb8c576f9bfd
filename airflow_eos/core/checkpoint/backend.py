"""The methods of obstore that a store uses, few enough for a test to replace; and object paths."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from airflow_eos.errors import StoreError


class StoredObject(NamedTuple):
    """A listed object: path in the checkpoint, name, bytes, and milliseconds since the epoch."""

    path: str
    name: str
    size: int
    modified_at_ms: int


class Content(bytes):
    """An object that was read whole, in the form of obstore's ``GetResult``."""

    def bytes(self) -> bytes:
        """Return the object's bytes."""
        return self


MOST_BYTES = 1 << 30
"""The most bytes that are read of one object; the largest decision that was reckoned has 740 MB.
Whoever may write to a checkpoint could else fill the memory of each reader, such as the page."""


def require_readable(path: str, size: int) -> None:
    """Raise OSError for an object that is too large to be read into memory."""
    if size > MOST_BYTES:
        raise OSError(f"{path} has {size} bytes: at most {MOST_BYTES} are read of one object")


class Backend(Protocol):
    """The methods of an obstore store that are used; any obstore store fits."""

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        """Write an object; AlreadyExistsError when mode is create and the object is there."""

    def get(self, path: str) -> Any:
        """Read an object; FileNotFoundError when absent."""

    def head(self, path: str) -> Any:
        """Return the metadata of an object; FileNotFoundError when absent."""

    def list_with_delimiter(self, prefix: str) -> Any:
        """List the objects and folders directly under ``prefix``."""

    def delete(self, paths: str) -> None:
        """Delete one object; may raise FileNotFoundError when absent."""


@runtime_checkable
class Foldered(Backend, Protocol):
    """A backend with folders: an empty one stays, and new objects may lie in a disk's cache."""

    def exists(self) -> bool:
        """Whether the checkpoint's folder exists already."""

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder if it is empty."""

    def sync(self, *paths: str) -> None:
        """Make objects durable that another process may just have written."""


def stored_object(meta: Any) -> StoredObject:
    """Translate obstore's ``ObjectMeta`` into a :class:`StoredObject`."""
    path = str(meta["path"])
    modified_at_ms = int(meta["last_modified"].timestamp() * 1000)
    return StoredObject(path, path.rpartition("/")[2], int(meta["size"]), modified_at_ms)


# --- paths ----------------------------------------------------------------------------------------
# Names inside a checkpoint folder, and the check that a name stays inside it.


OFFSETS = "offsets"
COMMITS = "commits"
STATE_STORES = "state"
"""The folder of the query's state; absent where the query keeps none."""
METADATA = "metadata"
SOURCES = "sources"

EOS = "eos"
DECISIONS = f"{EOS}/decisions"
PIPELINE = f"{EOS}/pipeline.json"
CUTS = f"{EOS}/cuts"
DRIVERS = f"{EOS}/drivers"
HEARTBEAT = f"{EOS}/driver.json"
DRAIN = f"{EOS}/drain.json"
DRAINS = f"{EOS}/drains"
RESTART = f"{EOS}/restart.json"
STANDBYS = f"{EOS}/standbys"
REPARTITION = f"{EOS}/repartition.json"
PROCESS_END = f"{EOS}/process-end.json"
RESUMPTION = f"{EOS}/resumption.json"
REFUSED = f"{EOS}/refused.json"
WATCHDOG = f"{EOS}/watchdog.json"
SPENT = f"{EOS}/spent"
TOPICS = f"{EOS}/topics.json"
STATE = f"{EOS}/state.json"
ASIDE = f"{EOS}/aside"
METADATA_COPY = f"{EOS}/metadata"

_BATCH = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


def is_batch(name: str) -> bool:
    """Whether the name is the number of a batch, as Spark writes it."""
    return _BATCH.fullmatch(name) is not None


def decision_path(batch_id: int, attempt: int) -> str:
    """Return the one path of this decision: ``eos/decisions/<batch>/<attempt>.json``."""
    return f"{DECISIONS}/{batch_id}/{attempt}.json"


def cut_path(batch_id: int) -> str:
    """Return the path of the cut after this batch: ``eos/cuts/<batch>.json``."""
    return f"{CUTS}/{batch_id}.json"


def term_path(number: int) -> str:
    """Return the path of the term, ``eos/drivers/<n>.json``, which says who took it."""
    return f"{DRIVERS}/{number}.json"


def drain_path(submission: str) -> str:
    """Return the path of a drain request to this start: ``eos/drains/<submission>.json``."""
    return f"{DRAINS}/{submission}.json"


def standby_path(name: str) -> str:
    """Return the path of what this standby says of itself: ``eos/standbys/<name>.json``."""
    return f"{STANDBYS}/{name}.json"


def visibility_marker_path(batch_id: int) -> str:
    """Return ``spent/<batch>/mark``: some rows of the batch may be visible, whatever is decided."""
    return f"{SPENT}/{batch_id}/mark"


def require_inside(path: str) -> str:
    """Return ``path`` if it is relative and cannot leave the checkpoint.

    Raises:
        StoreError: the path is absolute, empty, has an empty, ``.`` or ``..`` part, a backslash or
            a control character. A store would refuse most of these by itself, in its own way.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not path.isprintable() or "\\" in path:
        raise StoreError(
            f"{path!r} is not a path inside a checkpoint: expected names joined by '/', without "
            "'..', a leading '/', backslashes or control characters. Nothing was read or written."
        )
    return path


def is_hidden(name: str) -> bool:
    """Whether the name is of a temporary or checksum file: Spark's and ours start with a dot."""
    return name.startswith(".")
