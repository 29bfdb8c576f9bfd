"""A folder of data files: the names of prepared and visible files, and the folder's owner.

==================================================  ===========================================
``<folder>/[<c>=<value>/…]<key>.<end>``             visible: one file for each partition that a
                                                    task had
``_eos.<folder>/<name>/work/<key>/[<c>=<value>/…]<end>``  the same, prepared: beside the folder
==================================================  ===========================================

Some readers look into every folder below the one that they are given, whatever its name, and take
every file there for data. So undecided files lie beside the folder and not in it; and their names
have no ending of data, for readers of everything below the parent folder.
A decision names the partitions alone: the rest of each path follows from the key.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from airflow_eos.core.checkpoint.pipeline import OwnedBeside, OwnershipFile
from airflow_eos.core.protocol.cut import stamp_of
from airflow_eos.core.protocol.decision import OpenWork, require_own
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.files.names import works_of
from airflow_eos.kinds.lake.participant import checked

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.core.protocol.cut import BatchEnd
    from airflow_eos.core.protocol.decision import PreparedWork, WorkIdentity
    from airflow_eos.core.protocol.promise import OperatorRuling, Promise
    from airflow_eos.kinds.files.storage import DataFolder

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
# As Spark's ExternalCatalogUtils.escapePathName; other readers of Hive's layout unescape it, too.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_PART = r"[^=/\\\x00-\x1f.][^=/\\\x00-\x1f]*=[^=/\\\x00-\x1f]+"
_FOLDER = re.compile(rf"({_PART}(/{_PART})*)?")
_END = re.compile(r"[a-z0-9.]{1,40}", re.ASCII)


class WorkFile(NamedTuple):
    """One file of prepared work.

    Attributes:
        prepared: its path until it is decided, which no reader looks at, relative to the folder.
        visible: its path for readers.
        size: in bytes.
        tail: the sum of its last bytes, see ``tail_of``; None where the decision has none.
    """

    prepared: str
    visible: str
    size: int
    tail: int | None = None


def partition(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """Return a partition's folder, as Spark and Hive name it: ``day=2026-11-23/shop=a%2Fb``."""
    named = zip(columns, values, strict=True)
    return "/".join(f"{escape(column)}={escape(value or NO_VALUE)}" for column, value in named)


def escape(text: str) -> str:
    """Escape ``text`` for use as a part of a path."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def visible_name(folder: str, key: str, end: str) -> str:
    """Return the path of a visible file, relative to the folder of data."""
    name = f"{checked(key)}.{end}"
    return f"{folder}/{name}" if folder else name


def detail(
    end: str, sizes: Mapping[str, int], tails: Mapping[str, int] | None = None
) -> dict[str, object]:
    """Return a work's detail: the files' ending, and their bytes and sum in each partition."""
    return {"end": end, "partitions": dict(sizes), "tails": dict(tails or {})}


def files_of(work: PreparedWork) -> tuple[WorkFile, ...]:
    """Return the files of prepared work, always in the same order.

    Raises:
        CheckpointFormatError: the decision's detail does not describe files.
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
    """Return the path of a file until it is decided: without an ending of data, for readers."""
    return "/".join(filter(None, (prepared_at(name, key), folder, end.replace(".", "-"))))


def visible_of(prepared: str, name: str, key: str) -> str:
    """Return the visible path of a file from its prepared one."""
    folder, _, end = f"/{prepared.removeprefix(prepared_at(name, key))}".rpartition("/")
    return visible_name(folder.strip("/"), key, end.replace("-", "."))


def prepared_at(name: str, key: str) -> str:
    """Return the folder of prepared work ``key``, relative to the folder of data."""
    return f"{works_of(name)}/{checked(key)}"


def _is_sized(item: tuple[object, object]) -> bool:
    folder, size = item
    if not isinstance(folder, str) or not isinstance(size, int):
        return False
    return size >= 0 and _FOLDER.fullmatch(folder) is not None


# --- ownership ------------------------------------------------------------------------------------
# The base of both file participants: the mark of the folder, claim and notes.


_INSTANCE_ID = "mark"
_ID_FORM = re.compile(rb"[0-9a-f]{32}")


class FolderInstance:
    """The mark of one name in one folder, by which a folder is told from another.

    Args:
        storage: the folder of data.
        name: the participant's name.
        instance_id: the mark that is expected there.
    """

    def __init__(self, storage: DataFolder, name: str, instance_id: str) -> None:
        self._storage = storage
        self._at = f"{name}/{_INSTANCE_ID}"
        self.instance_id = instance_id

    @classmethod
    def made(cls, storage: DataFolder, name: str) -> Self:
        """Return the mark that is there; write a new one where there is none.

        Raises:
            StoreError: the place refuses, or the mark is damaged, or gone after it was written.
        """
        path = f"{name}/{_INSTANCE_ID}"
        storage.beside.create(path, uuid.uuid4().hex.encode())
        found = storage.beside.get(path)
        if found is None:
            raise StoreError(
                f"{storage.beside.location}/{path} was written and is gone: who deletes it?"
            )
        if _ID_FORM.fullmatch(found) is None:  # two disks with an empty mark would look the same
            raise StoreError(
                f"{storage.beside.location}/{path} is damaged: which folder this is, is not known.",
                Remedy(
                    change=f"write the mark of participant {name!r} in eos/pipeline.json into it, "
                    "or remove it where nothing was delivered under that name",
                    start=True,
                ),
            )
        return cls(storage, name, found.decode())

    def require(self) -> None:
        """Refuse a missing or another disk (StoreError): its missing files say nothing."""
        self._storage.require()
        kept = self._storage.beside.get(self._at)
        found = None if kept is None else kept.decode("ascii", errors="replace")
        if found != self.instance_id:
            raise StoreError(
                f"{self._storage.address} is not the folder of this pipeline: its mark is "
                f"{found or 'missing'}, expected {self.instance_id}. Is the disk mounted here? "
                "Nothing was concluded from files that are not there."
            )


# --- ownership ------------------------------------------------------------------------------------


KIND = "files"


class OwnedFolder(OwnedBeside):
    """The base of both file participants: members, checks, and the listing of open work.

    Args:
        storage: the folder that readers look at.
        name: the participant's name in decisions.
        instance_id: the random id of the name in this folder, which another disk does not have.
        more: further parts of the address, beside folder and mark.
    """

    def __init__(
        self,
        storage: DataFolder,
        *,
        name: str,
        instance_id: str,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = storage
        self._name = name
        self._instance = FolderInstance(storage, name, instance_id)
        self._beside = OwnershipFile(storage.kept(name), f"name {name!r} in {storage.address}")
        self._address = {"folder": storage.address, "mark": instance_id, **(more or {})}

    @property
    def members(self) -> tuple[Member, ...]:
        """The participant: its folder, and the mark on this disk or in this bucket."""
        return (Member(self._name, KIND, self._address, f"files:{self._storage.address}"),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that is not of this participant, or whose detail does not describe files."""
        require_own(works, KIND, self._name)
        for work in works:
            files_of(work)

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List work that is prepared and not visible; never list the folder of data."""
        known = {work.key for work in except_known}
        self._instance.require()
        found = []
        for key, entries in self._storage.listed(works_of(self._name)).items():
            visible = [visible_of(entry.path, self._name, key) for entry in entries]
            if key in known or None not in self._storage.sizes(visible):
                continue
            at_ms = min(entry.modified_at_ms for entry in entries)
            paths = tuple(f"{self._storage.address}/{path}" for path in visible)
            found.append(OpenWork(KIND, self._name, key, at_ms, None, paths))
        return tuple(sorted(found, key=lambda each: each.key))

    def position(self, end: BatchEnd) -> dict[str, Any]:
        """See :class:`Seekable`: the folder, and the stamp by which names of files tell batches."""
        publish = self._address.get("publish", "listing")
        stamp = stamp_of(end.pipeline, end.batch_id)
        return {"folder": self._storage.address, "publish": publish, "stamp": stamp}

    def _altered(self, files: Sequence[WorkFile]) -> set[str]:
        """Return the prepared paths whose file has another content than was promised.

        A copy, or a person, has put another file of the same size there.
        """
        asked = [file for file in files if file.tail is not None]
        found = self._storage.tails([(file.prepared, file.size) for file in asked])
        return {
            file.prepared
            for file, tail in zip(asked, found, strict=True)
            if tail not in (None, file.tail)
        }

    def _prepared(self, key: str) -> list[str]:
        return [entry.path for entry in self._storage.below(prepared_at(self._name, key))]

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Check nothing: readers of the files may have moved old ones away."""


# --- publish mode ---------------------------------------------------------------------------------
# The folder's publish mode, recorded once so that all writers use one mode.


_FORM = "form"  # a file: no participant can have this name


def require_form(storage: DataFolder, form: str) -> None:
    """Record the publish mode, as two starts at once see no data yet; refuse another mode.

    Raises:
        ConfigurationError: the folder has the other mode.
        StoreError: the place refuses, or the record is gone after it was written.
    """
    found = storage.beside.get(_FORM)
    if found is None:
        storage.beside.create(_FORM, form.encode())
        found = storage.beside.get(_FORM)
    if found is None:
        raise StoreError(
            f"{storage.beside.location}/{_FORM} was written and is gone: who deletes it?"
        )
    if found != form.encode():
        theirs = found.decode("ascii", errors="replace")
        raise ConfigurationError(
            f"{storage.address} is written with publish={theirs!r}, and not {form!r}: readers see "
            "the files of one form alone. Give another folder, or the same form."
        )
