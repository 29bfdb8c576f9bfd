"""Kafka as a participant: prepared work is an open Kafka transaction."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.snapshot import newest_promises
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.protocol.cut import BatchEnd
from airflow_eos.core.protocol.decision import (
    Decision,
    OpenWork,
    Outcome,
    PreparedWork,
    WorkIdentity,
    require_own,
)
from airflow_eos.core.protocol.participant import ANEW, Member, Owner, Ownership
from airflow_eos.core.protocol.promise import OperatorRuling, Promise
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    UnknownClusterError,
)
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.offsets import (
    EARLIEST,
    LATEST,
    cluster_clock_ms,
    partitions_of,
    positions,
)
from airflow_eos.kafka.client.settings import DEFAULT_TOPIC, KafkaSettings
from airflow_eos.kafka.transactions.coordinator import EndResult, end_transactions
from airflow_eos.kafka.transactions.hanging import (
    end_what_a_timeout_left,
    require_committed_everywhere,
    require_ended_everywhere,
    require_nothing_older,
)
from airflow_eos.kafka.transactions.identity import (
    KIND,
    PreparedTransaction,
    TransactionIdentity,
    as_open_work,
    as_transaction,
    belongs_to_prefix,
    named,
    not_ours,
    transaction_of,
)
from airflow_eos.kafka.transactions.listing import list_lookalikes, list_open, open_places
from airflow_eos.kafka.transactions.outcomes import made_again, outcomes
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.kafka.transactions.witness import later_than

PREFIX = "transactional_id_prefix"
TOPIC = "prefixes_topic"


class KafkaParticipant:
    """See :class:`airflow_eos.core.protocol.participant.Participant`.

    Args:
        wire: connections to the cluster; closed with this.
        ledger: the claim and the notes of the prefix; closed with this.
        name: the participant's name in decisions.
        target: the topic, for people.
        timeouts_ms: the timeouts of the pipeline's transactions, by which others under ids like
            ours are told apart; none: not known.
    """

    def __init__(
        self,
        wire: ConnectionPool,
        ledger: PrefixLedger,
        *,
        name: str,
        target: str = "",
        timeouts_ms: Collection[int] = (),
    ) -> None:
        self._wire = wire
        self._ledger = ledger
        self._name = name
        self._target = target
        self._timeouts_ms = timeouts_ms

    @property
    def members(self) -> tuple[Member, ...]:
        """The participant: its prefix, and the id of the cluster that answers."""
        address = {"cluster_id": self._wire.cluster_id, PREFIX: self._ledger.prefix}
        if self._ledger.topic != DEFAULT_TOPIC:
            address[TOPIC] = self._ledger.topic
        return (Member(self._name, KIND, address, self._target),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Refuse work that is not a transaction of this prefix, with a witness."""
        self._transactions(works)

    def require_decidable(self, works: Sequence[PreparedWork]) -> None:
        """See :class:`Deciding`: a transaction's marker ends all that its producer has open."""
        require_nothing_older(self._wire, self._transactions(works))

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Commit each transaction (EndTxn); where the answer is not enough, ask the log.

        A committed transaction has all its markers then, also where Kafka leaves one out; where
        the log no longer has its rows, the outcome is UNKNOWN.
        """
        transactions = self._transactions(works)
        expired = abort_expired(self._wire, [t for t in transactions if t.timeout_ms is None])
        settled = dict.fromkeys(expired, Outcome.ABORTED)
        settled |= settle(self._wire, [t for t in transactions if t.identity not in expired])
        lost = require_committed_everywhere(
            self._wire, [t for t in transactions if settled[t.identity] is Outcome.COMMITTED]
        )
        return self._named(settled | dict.fromkeys(lost, Outcome.UNKNOWN))

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Abort each transaction (EndTxn) by its own epoch, which cannot hit a later holder."""
        require_own(works, KIND, self._name)
        identities = [transaction_of(work) for work in works]
        partitions = open_places(self._wire, identities)
        ended = end_transactions(self._wire, identities, commit=False)
        done = {each: result is EndResult.DONE for each, result in ended.items()}
        require_ended_everywhere(
            self._wire, {each: partitions[each] for each in partitions if done[each]}, commit=False
        )
        return self._named(done)

    abandon = abort  # EndTxn ends it whole, or finds it committed

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Return each transaction's outcome from the log of its partitions.

        UNKNOWN where a topic was made again: its new log says nothing of our rows. One that no
        timer ends may be open though its rows are past retention: its coordinator tells.
        """
        lost = dict.fromkeys(self.lost_targets(works), Outcome.UNKNOWN)
        asked = self._transactions([each for each in works if each.identity not in lost])
        found = outcomes(self._wire, asked)
        untold = {t.identity for t in asked if t.timeout_ms is None} & {
            each for each, outcome in found.items() if outcome is Outcome.UNKNOWN
        }
        found |= dict.fromkeys(open_places(self._wire, untold), Outcome.OPEN)
        return {**self._named(found), **lost}

    def lost_targets(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, str]:
        """Return why work can be committed no more: see :func:`made_again`."""
        return self._named(made_again(self._wire, [as_transaction(each) for each in works]))

    def open(self, *, except_known: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List the coordinators' open transactions under the prefix; some may be another's."""
        known = {transaction_of(work) for work in except_known}
        listed = list_open(self._wire, self._ledger.prefix, except_known=known)
        return tuple(
            as_open_work(each, self._name, not_ours(each, self._timeouts_ms)) for each in listed
        )

    def clock_ms(self) -> int | None:
        """See :class:`TellsTime`: return the active controller's time."""
        return cluster_clock_ms(self._wire)

    def claim(self, owner: Owner) -> None:
        """Claim the prefix on this cluster."""
        self._ledger.claim(owner)

    def inherit(self, owner: Owner) -> None:
        """Forget the notes of a checkpoint that is gone; see :class:`SupportsHandover`."""
        self._ledger.forget()
        self._ledger.claim(owner)

    def ownership(self, asking: Owner) -> tuple[Ownership, ...]:
        """Read the topic of prefixes that the checkpoint names, and that of the settings, too.

        So a checkpoint that names another topic cannot take over another pipeline's prefix.
        """
        del asking
        found, settings = self._ledger.read(), self._wire.settings
        if self._ledger.topic == settings.prefixes_topic:
            return (found,)
        with closing(PrefixLedger(settings, prefix=self._ledger.prefix)) as ledger:
            claimed = ledger.read()
        return (found, claimed) if claimed.owner is not None else (found,)

    def lookalikes(self) -> tuple[OpenWork, ...]:
        """See :class:`SharesNames`: list open transactions of Flink, Kafka Streams and others."""
        return tuple(
            as_open_work(each, self._name, whose)
            for each, whose in list_lookalikes(self._wire, self._ledger.prefix)
        )

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Check nothing: the log may hold no rows of an old batch any more, by its retention."""

    def later_than(self, promises: Sequence[Promise]) -> str:
        """See :class:`SeesDeliveries`: ask the ids' coordinators, and the log of the output."""
        works = [work for each in promises for work in each.part(self._name).works]
        return later_than(self._wire, self._ledger.prefix, self._transactions(works))

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision in the topic of prefixes, and wait until Kafka acknowledges it."""
        self._ledger.note(decision, owner)

    def position(self, end: BatchEnd) -> dict[str, Any]:
        """See :class:`Seekable`: by topic its id, and where each partition ends.

        Right behind our last row there. A topic that we have not written to before is looked at:
        its other partitions may have earlier rows of ours, all of them committed by now, and
        perhaps behind the open transaction of another writer: so to the end of the log.
        """
        found = dict(end.former or {})
        written = [at for each in self._transactions(end.works) for at in each.written]
        ids = {at.topic: at.topic_id for at in written}
        new = [name for name, its in ids.items() if name not in found or found[name]["id"] != its]
        if new:
            partitions = partitions_of(self._wire, new, refresh=True)
            looked = positions(self._wire, partitions, LATEST, committed_only=False)
            end.require_in_flight()
            for name in new:
                ends = {str(at): last for (topic, at), last in looked.items() if topic == name}
                found[name] = {"id": ids[name], "ends": ends}
        for name, its in ids.items():
            ends = dict(found[name]["ends"])
            for at in written:
                if (at.topic, at.topic_id) == (name, its):
                    ends[str(at.partition)] = max(ends.get(str(at.partition), 0), at.last + 1)
            found[name] = {"id": its, "ends": ends}
        return found

    def close(self) -> None:
        """Close the connections; transactions stay as they are."""
        try:
            self._ledger.close()
        finally:
            self._wire.close()

    def _transactions(self, works: Sequence[PreparedWork]) -> list[PreparedTransaction]:
        """Return the works' transactions; refuse other prefixes, as of a copied decision."""
        require_own(works, KIND, self._name)
        found = [as_transaction(work) for work in works]
        prefix = self._ledger.prefix
        for each in found:
            if not belongs_to_prefix(each.transactional_id, prefix):
                raise CheckpointFormatError(
                    f"A decision names the transaction {each.transactional_id!r}, which is not of "
                    f"the transactional id prefix {prefix!r}: it is another pipeline's decision, "
                    "copied into this checkpoint. Nothing of either was ended.",
                    Remedy(
                        change="put the decision that names it back, as this checkpoint had it",
                        start=True,
                    ),
                    ANEW,
                )
        return found

    def _named(self, by_transaction: Mapping[TransactionIdentity, Any]) -> dict[WorkIdentity, Any]:
        return {named(each, self._name): what for each, what in by_transaction.items()}


def _topic(member: Member) -> str | None:
    """Return the topic of prefixes that a checkpoint names; None where none is claimed yet."""
    known = DEFAULT_TOPIC if "cluster_id" in member.address else None
    return member.address.get(TOPIC, known)


def connect(
    member: Member,
    kafka: Mapping[str, object] | KafkaSettings | ConnectionPool | None,
    *,
    store: CheckpointStore | None = None,
    timeout_s: float,
) -> KafkaParticipant:
    """Connect to ``member`` through the cluster that ``kafka`` names.

    Args:
        member: its name, and the prefix of its address.
        kafka: a librdkafka-style configuration, or a connection that is open already and is taken
            over; None is refused.
        store: the checkpoint, whose decisions tell the timeouts of its transactions.
        timeout_s: seconds to look for a first broker.

    Raises:
        UnknownClusterError: no cluster is named.
        ConfigurationError: a setting cannot work, or the address has no prefix.
        KafkaError: no broker answers, it does not accept these credentials, or the brokers lack
            a message that is needed.
    """
    if kafka is None:
        raise UnknownClusterError(
            f"Which Kafka cluster? {member} takes part in this pipeline: give --bootstrap-servers "
            "host:port or --kafka-config FILE, or the Kafka connection, with the pipeline's own "
            "settings."
        )
    prefix = member.address.get(PREFIX)
    if prefix is None:
        raise ConfigurationError(f"{member} has no {PREFIX}: eos/pipeline.json is not Kafka's.")
    if isinstance(kafka, Mapping):
        kafka = KafkaSettings.from_librdkafka(kafka)
    wire = (
        kafka if isinstance(kafka, ConnectionPool) else ConnectionPool(kafka, timeout_s=timeout_s)
    )
    with closed_on_error(wire):
        wire.cluster.capabilities().require()
    ledger = PrefixLedger(wire.settings, prefix=prefix, topic=_topic(member))
    with closed_on_error(wire):
        timeouts = _timeouts_of(member, store)
    return KafkaParticipant(
        wire, ledger, name=member.name, target=member.target, timeouts_ms=timeouts
    )


def _timeouts_of(member: Member, store: CheckpointStore | None) -> set[int]:
    """Return the timeouts of the member's transactions that the newest decisions name."""
    if store is None:
        return set()
    promises = newest_promises(store, DecisionLog(store))
    works = (work for each in promises for work in each.part(member.name).works)
    return {work.timeout_ms for work in works if work.timeout_ms is not None}


def abort_expired(
    wire: ConnectionPool, transactions: Sequence[PreparedTransaction]
) -> set[TransactionIdentity]:
    """Abort open transactions of which rows are past retention; return which were aborted here.

    Retention goes on while a transaction is open, and no timer has ended these. No reader has seen
    a row of them: aborted, their rows are all replayed; committed, those that are gone would be
    lost in silence.
    """
    partitions = {at.tp for each in transactions for at in each.written}
    led = {topic: wire.cluster.find_leaders(topic) or {} for topic in {t for t, _ in partitions}}
    begins = positions(wire, [(t, p) for t, p in partitions if p in led[t]], EARLIEST)
    expired = [
        each.identity
        for each in transactions
        if any(at.first < begins.get(at.tp, 0) for at in each.written)
    ]
    ended = end_transactions(wire, expired, commit=False)
    return {each for each, result in ended.items() if result is EndResult.DONE}


# --- settling -------------------------------------------------------------------------------------
# Settling a COMMIT decision: commit every transaction, until every outcome is known.


_SHORTEST_ROUND_S = 1.0
"""The least time of a round: so the last one before the deadline still asks, and may end late."""


def settle(
    wire: ConnectionPool,
    transactions: Sequence[PreparedTransaction],
    *,
    deadline_s: float = 60.0,
) -> dict[TransactionIdentity, Outcome]:
    """Commit transactions; return COMMITTED, ABORTED or UNKNOWN for each, never OPEN.

    May run any number of times, in any number of processes. Where the coordinator cannot tell,
    the log is asked; where the log cannot tell yet, both are asked again.

    Raises:
        KafkaUnavailableError: not all outcomes are known after ``deadline_s``.
        TransactionError, TopicError: Kafka refused for good; see the message.
    """
    deadline = Deadline(deadline_s)
    settled: dict[TransactionIdentity, Outcome] = {}
    if "EOS_FAILPOINTS" in os.environ and len(transactions) > 1:
        # All are ended together; one goes first only for a test or the demo, which stop in between.
        settled |= _settle_once(wire, transactions[:1], deadline)
        failpoint("settled-some")
    left = [t for t in transactions if t.identity not in settled]
    while left:
        settled |= _settle_once(wire, left, deadline)
        left = [t for t in left if t.identity not in settled]
        if left and not deadline.pause():
            where = left[0].witness
            raise KafkaUnavailableError(
                f"{len(left)} of {len(transactions)} transactions are still open after "
                f"{deadline}, as {left[0].identity}: their own end, or another transaction "
                f"that began before them in partition {where.partition} of topic "
                f"{where.topic!r}, is not through yet. Ask again; where that does not help, "
                f"airflow-eos hanging {where.topic} shows whether a broker has lost track of one."
            )
    return settled


def _settle_once(
    wire: ConnectionPool,
    transactions: Sequence[PreparedTransaction],
    deadline: Deadline,
) -> dict[TransactionIdentity, Outcome]:
    """Return the outcomes known after one round, without transactions that the log calls open."""
    remaining_s = max(deadline.remaining, _SHORTEST_ROUND_S)
    identities = [t.identity for t in transactions]
    ended = end_transactions(wire, identities, commit=True, deadline_s=remaining_s)
    unclear = [t for t in transactions if ended[t.identity] is EndResult.LOOK]
    settled = {i: Outcome.COMMITTED for i, result in ended.items() if result is EndResult.DONE}
    remaining_s = max(deadline.remaining, _SHORTEST_ROUND_S)
    looked = outcomes(wire, unclear, deadline_s=remaining_s)
    seen = {o: [t for t in unclear if looked[t.identity] is o] for o in set(looked.values())}
    end_what_a_timeout_left(wire, seen.get(Outcome.OPEN, ()), deadline_s=remaining_s)
    with suppress(KafkaError):  # not allowed to: the next batch ends it, by its own marker
        end_what_a_timeout_left(wire, seen.get(Outcome.ABORTED, ()), deadline_s=remaining_s)
    return settled | {i: o for i, o in looked.items() if o is not Outcome.OPEN}
