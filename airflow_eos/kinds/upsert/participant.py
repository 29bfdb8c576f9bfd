"""The upsert participant: rows kept in the checkpoint are written to a target once decided.

Each row is guarded by its version, see :mod:`airflow_eos.kinds.upsert.target`: so repeating
a commit is harmless, by any process and however late.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import structs

from airflow_eos.core.checkpoint.pipeline import checkpoint_of
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.participant import Member, Note, Owner, Ownership
from airflow_eos.errors import ConfigurationError, DeliveryError, OwnershipError, Remedy, StoreError
from airflow_eos.kinds.spill.participant import SpilledRows, SpillParticipant
from airflow_eos.kinds.sql.servers import as_text
from airflow_eos.kinds.upsert.target import RowSchema, last_of_each, order_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Decision, PreparedWork
    from airflow_eos.core.protocol.promise import OperatorRuling, Promise
    from airflow_eos.kinds.upsert.target import UpsertConnection


class Tally:
    """The known count of a target's writes, by which a target that was set back is noticed.

    Args:
        target: the target that counts.
    """

    def __init__(self, target: UpsertConnection) -> None:
        self._target = target
        self._known = 0
        self._life: str | None = None

    def begin(self) -> None:
        """Remember which server answers; to be called before the rows that are counted next."""
        self._life = self._target.life()

    def count(self) -> int:
        """Let the target count one more, after rows are written and before they are marked.

        Raises:
            OwnershipError: the target was set back since it was asked last.
            DeliveryError: another server answers than at :meth:`begin`.
        """
        number = self._target.count(self._known)
        if number is None:
            raise self.set_back(f"it counts to {self._target.tally()}, after {self._known}")
        self._known = number
        if self._life not in (None, self._target.life()):
            raise DeliveryError(
                f"The {self.called} was started again, or another server took over, while rows "
                "were written: it may lack some that it had acknowledged. None is marked as "
                "applied, and writing them again is harmless: start the query again, or run a "
                "recovery."
            )
        return number

    def require(self, marked: int = 0) -> None:
        """Refuse a target whose count is less than it was.

        Args:
            marked: the highest number in the checkpoint, read before this call.

        Raises:
            OwnershipError: with both counts, and how to go on.
        """
        self._known = max(self._known, marked)
        tally = self._target.tally()
        if tally < self._known:
            raise self.set_back(f"it counts to {tally}, after {self._known}")
        self._known = tally

    def set_back(self, found: str) -> OwnershipError:
        """Return the error for a target that was set back."""
        return OwnershipError(
            f"The {self.called} was set back ({found}): a backup was put back, a standby took "
            "over that lagged, or the server lost what it had acknowledged. Rows of batches that "
            "are over are gone there, and nothing delivers them again. Put its newest data back. "
            "Where there are none, deliver anew from a new checkpoint, whose values replace all "
            "older ones; or compare the target with its source and mend it, and go on knowingly: "
            f"{self._target.go_on(self._known)}, then start again."
        )

    @property
    def called(self) -> str:
        """The target and its system, as errors name them."""
        return f"target {self._target.address['target']!r} in {self._target.address['system']}"


log = Log(__name__)

KIND = "upsert"


class UpsertParticipant(SpillParticipant):
    """See :class:`airflow_eos.core.protocol.participant.Participant`.

    Args:
        kept: where the rows wait.
        target: the target that the rows are written to.
        name: the participant's name in decisions.
        checkpoint: the random id of the name in this checkpoint.
        instance_id: the random id of the target, which another server does not have.
        staged: False: tasks write to the target, and no decision names their rows.
    """

    kind = KIND
    at_once = 16

    def __init__(
        self,
        kept: SpilledRows,
        target: UpsertConnection,
        *,
        name: str,
        checkpoint: str,
        instance_id: str,
        staged: bool = True,
    ) -> None:
        super().__init__(kept, name=name, instance_id=checkpoint)
        self._target = target
        self._target_instance_id = instance_id
        self._staged = staged
        self._tally = Tally(target)

    @property
    def members(self) -> tuple[Member, ...]:
        """The participant: the marks of this checkpoint and of the target."""
        where = self._target.address
        address = {**where, "mark": self._target_instance_id, "checkpoint": self._instance_id}
        return (Member(self._name, KIND, address, f"{where['system']}:{where['target']}"),)

    def apply(self, work: PreparedWork, rows: pa.Table) -> None:
        """Write the rows whose keys have no newer version in the target."""
        about = RowSchema.of(rows, self._kept.location_of_rows(work.key))
        older = self._target.apply(
            last_of_each(rows, about.key), about, self._instance_id, order_of(work.key)
        )
        if older:
            log.info("older_rows_left_out", participant=self._name, work=work.key, rows=older)

    def applying(self) -> None:
        """See :meth:`Tally.begin`."""
        self._tally.begin()

    def counted(self) -> int:
        """See :meth:`Tally.count`."""
        return self._tally.count()

    def claim(self, owner: Owner) -> None:
        """Claim the target: the first checkpoint that does owns it, with an epoch of its own."""
        self._target.claim(owner.location, self._instance_id)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Return the target's owner, known by its checkpoint's random id, and its newest note.

        Raises:
            OwnershipError: the target lacks rows that the checkpoint has marked as applied.
        """
        owner, newest = self._target.owner(), self._target.newest()
        held = None
        if owner is not None:
            ours = owner.checkpoint == self._instance_id
            held = Owner(asking.pipeline if ours else owner.checkpoint, owner.location)
            if ours:
                self._tally.require(self._newest_number())
        pipeline = "" if held is None else held.pipeline
        noted = () if newest is None else (structs.replace(newest, pipeline=pipeline),)
        give_up = Remedy(change=self._target.give_up, start=True)
        return (Ownership(self._tally.called, held, noted, give_up=give_up, move=give_up),)

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Refuse a target that was set back; a person lets it in by a change in the target.

        Each batch is noted before it is over, also one without rows for this target.
        """
        del said
        newest = self._target.newest()
        if newest is not None and newest.batch < promise.batch_id:
            raise self._tally.set_back(
                f"batch {promise.batch_id} is over, and it knows of none after {newest.batch}"
            )

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision in the target, where the highest note stays.

        Raises:
            OwnershipError: the target was set back, or belongs to another checkpoint.
        """
        self._tally.require()
        self._target.note(Note.of(decision, owner), self._instance_id)
        if not self._staged:
            # No commit counts the rows that this batch's tasks have written, all before this note.
            self._tally.count()
        super().note(decision, owner)

    def close(self) -> None:
        """Close the connection to the target."""
        self._target.close()

    def require_target(self) -> None:
        """Refuse another server, or one that has lost its data (StoreError)."""
        found = self._target.instance_id()
        if found != self._target_instance_id:
            raise StoreError(
                f"The {self._tally.called} is not the one of this pipeline: its mark is "
                f"{found or 'missing'}, expected {self._target_instance_id}. Is it another server, "
                "or has it lost its data? Nothing was done."
            )


def made(
    store: CheckpointStore, name: str, target: UpsertConnection, *, staged: bool = True
) -> UpsertParticipant:
    """Make the participant of a sink that starts; mark checkpoint and target if needed.

    Raises:
        ConfigurationError: the target could lose or refuse promised rows.
        DeliveryError: the target cannot be reached.
        StoreError: the store refuses.
    """
    target.check()
    kept = SpilledRows(store, name)
    instance_ids = {
        "checkpoint": kept.ensure_instance_id(),
        "instance_id": target.ensure_instance_id(),
    }
    return UpsertParticipant(kept, target, name=name, staged=staged, **instance_ids)


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float
) -> UpsertParticipant:
    """Connect to the target of ``member`` by ``how``: a URL or DSN, or its parts as a mapping.

    Raises:
        ConfigurationError: ``how`` is missing, or there is no checkpoint.
        StoreError: the checkpoint, or the target, is another one.
        DeliveryError: the target cannot be reached.
    """
    system, where = member.address.get("system"), member.address.get("target")
    checkpoint, instance_id = member.address.get("checkpoint"), member.address.get("mark")
    if None in (system, where, checkpoint, instance_id) or system not in _SYSTEMS:
        raise ConfigurationError(
            f"{member}: expected a target in {' or '.join(sorted(_SYSTEMS))}: eos/pipeline.json is "
            "of another release, or not of an upsert."
        )
    kept = SpilledRows(checkpoint_of(member, store), member.name)
    told = as_text(str(system), how)
    if told is None:
        raise ConfigurationError(
            f"Which {system} holds {where!r}? {member} takes part in this pipeline: give "
            f"{{{member.name!r}: {_SYSTEMS[str(system)][1]!r}}}, with the pipeline's own server."
        )
    target = target_of(str(system), told, str(where)).open(timeout_s=timeout_s)
    participant = UpsertParticipant(
        kept,
        target,
        name=member.name,
        checkpoint=str(checkpoint),
        instance_id=str(instance_id),
    )
    with closed_on_error(participant):
        participant.require_checkpoint()
        participant.require_target()
    return participant


_SYSTEMS = {
    "hbase": ("HBaseUpsert", "http://host:8080"),
    "mysql": ("MySqlUpsert", "mysql://user:password@host:3306/database"),
    "redis": ("RedisUpsert", "redis://host:6379/0"),
    "postgres": ("PostgresUpsert", "host=… dbname=… user=… password=…"),
}
"""The systems: the class in the system's module, and an example of how it is reached."""


def target_of(system: str, how: str, where: str) -> Any:
    """Return the target in a system, whose module is imported only when it is needed."""
    module = import_module(f"airflow_eos.kinds.upsert.{system}")
    return getattr(module, _SYSTEMS[system][0])(how, where)
