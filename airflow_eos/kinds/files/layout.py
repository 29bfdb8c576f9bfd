"""Names of data files, prepared and visible; pure.

==================================================  ===========================================
``<folder>/[<c>=<value>/…]<key>.<end>``             visible: one file for each partition that a
                                                    task had
``_eos.<folder>/<name>/work/<key>/[<c>=<value>/…]<end>``  the same, prepared: beside the folder
==================================================  ===========================================

Some readers look into every folder below the one that they are given, whatever its name, and take
whatever lies there for data. So what is not decided lies beside the folder and not in it; and its
names have no ending of data, for those who read everything below the folder above.
A decision names the partitions alone: the rest of each path follows from the key.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_eos.errors import CheckpointFormatError, ConfigurationError
from airflow_eos.protocol.decision import is_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.protocol.decision import PreparedWork

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
TAIL_BYTES = 1 << 16
KEPT = "_eos"
"""What begins with this folder lies beside the data: see :func:`beside`."""
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
        size: in bytes.
        tail: the sum of its last bytes, see :func:`tail_of`; None where the decision has none.
    """

    prepared: str
    visible: str
    size: int
    tail: int | None = None


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


def detail(
    end: str, sizes: Mapping[str, int], tails: Mapping[str, int] | None = None
) -> dict[str, object]:
    """What a decision holds of files: their ending, and bytes and sum in each partition."""
    return {"end": end, "partitions": dict(sizes), "tails": dict(tails or {})}


def tail_of(last: bytes) -> int:
    """The sum of the last :data:`TAIL_BYTES` of a file.

    In them a Parquet file says where each of its columns lies and what it ranges over: another
    file of the same size has others. And of a small file they are all.
    """
    return zlib.crc32(last)


def files_of(work: PreparedWork) -> tuple[WorkFile, ...]:
    """The files of prepared work, in an order that is always the same.

    Raises:
        CheckpointFormatError: the decision names what is no file of ours.
    """
    end, sizes = work.detail.get("end"), work.detail.get("partitions")
    tails = work.detail.get("tails", {})
    if (
        not isinstance(end, str)
        or not _END.fullmatch(end)
        or not isinstance(sizes, dict)
        or not isinstance(tails, dict)
        or not all(map(_is_sized, (*sizes.items(), *tails.items())))
    ):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {work.detail}: expected an ending of files, and "
            "bytes by partition (column=value/…). Nothing was done with it. Was the checkpoint "
            "written by a newer release? Then use that one."
        )
    return tuple(
        WorkFile(
            prepared_name(folder, work.participant, work.key, end),
            visible_name(folder, work.key, end),
            sizes[folder],
            tails.get(folder),
        )
        for folder in sorted(sizes)
    )


def prepared_name(folder: str, name: str, key: str, end: str) -> str:
    """The path of the same file until it is decided: without an ending, by which readers go."""
    return "/".join(filter(None, (prepared_at(name, key), folder, end.replace(".", "-"))))


def visible_of(prepared: str, name: str, key: str) -> str:
    """The path that readers are going to see of a prepared file."""
    folder, _, end = f"/{prepared.removeprefix(prepared_at(name, key))}".rpartition("/")
    return visible_name(folder.strip("/"), key, end.replace("-", "."))


def prepared_at(name: str, key: str) -> str:
    """The work of ``key``, relative to the folder of data."""
    return f"{works_of(name)}/{checked(key)}"


def works_of(name: str) -> str:
    """Where all work of a participant is, relative to the folder of data."""
    return f"{kept_at(name)}/work"


def kept_at(name: str) -> str:
    """What a participant keeps beside the data."""
    return f"{KEPT}/{name}"


def beside(folder: str) -> str:
    """The name of what is kept beside a folder: readers of the one above pass over it.

    Spark does so where a name begins with an underscore and has no ``=``.
    """
    return f"{KEPT}.{folder.replace('~', '~0').replace('=', '~1')}"


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
