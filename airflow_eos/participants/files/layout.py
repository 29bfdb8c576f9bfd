"""Names of data files, prepared and visible; pure.

========================================  =====================================================
``<folder>/[<c>=<value>/…]<key>.<end>``   visible: one file for each partition that a task had
``<folder>/_eos/<name>/work/<key>/…``     the same names, prepared (``publish="listing"``)
``<folder>/_eos/<name>/work/<key>``       where a manifest makes files visible: a note which they
                                          are. In the form before partitions: the prepared file
========================================  =====================================================

A decision names the partitions alone: the rest of each path follows from the key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.protocol.work import is_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.protocol.work import PreparedWork

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
OLD_END = "parquet"
# Spark's ExternalCatalogUtils.escapePathName: other readers of Hive's layout take them back too.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_PART = r"[^=/\\\x00-\x1f.][^=/\\\x00-\x1f]*=[^=/\\\x00-\x1f]+"
_FOLDER = re.compile(rf"({_PART}(/{_PART})*)?")
_END = re.compile(r"[a-z0-9.]{1,40}", re.ASCII)


class WorkFile(NamedTuple):
    """One file of prepared work.

    Attributes:
        prepared: where nobody looks, relative to the folder.
        visible: where readers look.
        size: in bytes; None in the form before partitions.
    """

    prepared: str
    visible: str
    size: int | None


def partition(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """``day=2026-11-23/shop=a%2Fb``: the folder of these values, as Spark and Hive name it."""
    named = zip(columns, values, strict=True)
    return "/".join(f"{escape(column)}={escape(value or NO_VALUE)}" for column, value in named)


def escape(text: str) -> str:
    """``text`` as a part of a path."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def visible_name(folder: str, key: str, end: str) -> str:
    """The path of a file that readers see."""
    name = f"{checked(key)}.{end}"
    return f"{folder}/{name}" if folder else name


def detail(end: str, sizes: Mapping[str, int]) -> dict[str, object]:
    """What a decision holds of files: their ending, and the bytes in each partition."""
    return {"end": end, "partitions": dict(sizes)}


def files_of(work: PreparedWork) -> tuple[WorkFile, ...]:
    """The files of prepared work, in an order that is always the same.

    Raises:
        CheckpointFormatError: the decision names what is no file of ours.
    """
    kept = prepared_at(work.participant, work.key)
    if "partitions" not in work.detail:
        return (WorkFile(kept, visible_name("", work.key, OLD_END), work.detail.get("bytes")),)
    end, sizes = work.detail.get("end"), work.detail["partitions"]
    if (
        not isinstance(end, str)
        or not _END.fullmatch(end)
        or not isinstance(sizes, dict)
        or not all(map(_is_sized, sizes.items()))
    ):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {work.detail}: expected an ending of files, and "
            "bytes by partition (column=value/…). Nothing was done with it. Was the checkpoint "
            "written by a newer release? Then use that one."
        )
    names = {folder: visible_name(folder, work.key, end) for folder in sorted(sizes)}
    return tuple(WorkFile(f"{kept}/{name}", name, sizes[folder]) for folder, name in names.items())


def require_visible(path: str, key: str) -> str:
    """Return ``path`` if it is that of a file of the work ``key``.

    Raises:
        CheckpointFormatError: it is another one.
    """
    folder, _, name = path.rpartition("/")
    if not name.startswith(f"{checked(key)}.") or not _FOLDER.fullmatch(folder):
        raise CheckpointFormatError(f"{path!r} is no file of work {key}.")
    return path


def prepared_at(name: str, key: str) -> str:
    """The work of ``key``, relative to the folder of data."""
    return f"{works_of(name)}/{checked(key)}"


def works_of(name: str) -> str:
    """Where all work of a participant is, relative to the folder of data."""
    return f"{kept_at(name)}/work"


def kept_at(name: str) -> str:
    """What a participant keeps beside the data."""
    return f"_eos/{name}"


def checked(key: str) -> str:
    """Return ``key`` if a file may be called so (ConfigurationError)."""
    if not is_key(key):
        raise ConfigurationError(f"{key!r} is no key of a file: expected letters, digits and ._-")
    return key


def _is_sized(item: tuple[object, object]) -> bool:
    folder, size = item
    if not isinstance(folder, str) or not isinstance(size, int):
        return False
    return size >= 0 and _FOLDER.fullmatch(folder) is not None
