"""Rows kept in the checkpoint, and handed to a callable of the user once they are decided.

The checkpoint is the witness, and the owner: what is remembered of the name lies beside the rows.
So an older copy of the whole checkpoint, put back in place, cannot be told from the newest one:
its batches would be delivered again, under tokens that the callable has never seen. A copy of
``offsets/`` and ``commits/`` without ``eos/`` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint.pipeline import OwnedBeside, OwnershipFile, checkpoint_of
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.spill.participant import SpilledRows, SpillParticipant
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.protocol.decision import Decision, PreparedWork
    from airflow_eos.protocol.participant import Owner

Deliver = Callable[[str, "pa.Table"], object]

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


def check_deliver(name: str) -> str:
    """Return ``name`` if it may be one of a callable (ConfigurationError: it may not)."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"deliver {name!r}: expected 'package.module:function', where every process that "
            "commits can import it: the driver, and whoever runs a recovery."
        )
    return name


def deliver_of(how: object) -> tuple[str, Any] | None:
    """The callable's name, and what it is given beside the rows; None: ``how`` names none."""
    asked = {"deliver": how} if isinstance(how, str) else how
    if not isinstance(asked, Mapping) or not isinstance(asked.get("deliver"), str):
        return None
    return asked["deliver"], asked.get("reach")


def loaded(name: str, reach: Any = None) -> Deliver:
    """The callable of that name, given ``reach`` where there is one.

    Raises:
        ConfigurationError: it cannot be imported, or cannot be called.
    """
    module, _, path = check_deliver(name).partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"deliver {name!r} cannot be imported here: {error}. Install or package its module "
            "for the driver (spark-submit --py-files), and where recovery runs."
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"deliver {name!r} is a {type(found).__name__}: expected a function (token, rows)."
        )
    return found if reach is None else partial(found, reach=reach)


KIND = "wal"


class WriteAheadParticipant(OwnedBeside, SpillParticipant):
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        kept: where the rows wait.
        name: the participant's name in decisions.
        mark: the random id of the name in this checkpoint.
        deliver: takes (token, rows).
        target: its name, for people.
    """

    kind = KIND

    def __init__(
        self, kept: SpilledRows, *, name: str, mark: str, deliver: Deliver, target: str
    ) -> None:
        super().__init__(kept, name=name, mark=mark)
        self._deliver = deliver
        self._target = target
        called = f"name {name!r} in {kept.place(kept.folder)}"
        self._beside = OwnershipFile(kept.store, called, kept.folder)

    @property
    def members(self) -> tuple[Member, ...]:
        """In this checkpoint; the callable may move."""
        return (Member(self._name, KIND, {"mark": self._mark}, self._target),)

    def apply(self, work: PreparedWork, rows: pa.Table) -> None:
        """Call the callable; an error of it is no outcome."""
        try:
            self._deliver(work.key, rows)
        except Exception as error:
            raise DeliveryError(
                f"{self._target} raised {type(error).__name__} for token {work.key} "
                f"({work.rows} rows of {KIND} {self._name!r}). It is not known whether it had an "
                "effect. The rows are kept: start the query again, or run a recovery, and it is "
                "called again with the same token."
            ) from error

    def note(self, decision: Decision, owner: Owner) -> None:
        """Remember it beside the rows."""
        OwnedBeside.note(self, decision, owner)
        SpillParticipant.note(self, decision, owner)


def made(store: CheckpointStore, name: str, deliver: str, reach: Any) -> WriteAheadParticipant:
    """The participant of a sink that starts: the checkpoint is marked, if it is not yet.

    Raises:
        ConfigurationError: the callable is not there.
        StoreError: the store refuses.
    """
    call = loaded(deliver, reach)
    kept = SpilledRows(store, name)
    return WriteAheadParticipant(kept, name=name, mark=kept.marked(), deliver=call, target=deliver)


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float
) -> WriteAheadParticipant:
    """Deliver the rows of ``member`` by the callable that ``how`` names.

    What the checkpoint names is never imported: whoever can write there could run any code here.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: ``"package.module:function"``, or ``{"deliver": that, "reach": …}``.
        store: the checkpoint.
        timeout_s: not needed.

    Raises:
        ConfigurationError: ``how`` names no callable, or there is no checkpoint.
        StoreError: it is another checkpoint.
    """
    del timeout_s
    asked = deliver_of(how)
    if asked is None:
        raise ConfigurationError(
            f"Which callable delivers the rows of {member}? The pipeline used {member.target!r}; "
            "it is not imported because a checkpoint says so. Give it yourself: "
            f"{{{member.name!r}: {{'deliver': 'package.module:function', 'reach': …}}}}."
        )
    deliver, reach = asked
    participant = WriteAheadParticipant(
        SpilledRows(checkpoint_of(member, store), member.name),
        name=member.name,
        mark=member.address.get("mark", ""),
        deliver=loaded(deliver, reach),
        target=deliver,
    )
    participant.require_checkpoint()
    return participant
