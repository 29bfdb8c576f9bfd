"""What rows that wait in the checkpoint owe, whatever database it is: its own module imports these.

A module that does has a fixture ``keeping``, a :class:`SqlWorld` whose rows wait there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_eos.core.participants import connect
from airflow_eos.core.protocol.decision import Outcome, PreparedWork
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    OwnershipError,
    StoreError,
)
from airflow_eos.kinds.sql.kept import KeptStatements
from airflow_eos.kinds.sql.participant import GENERATION
from tests.integration.kept.keeping import decided
from tests.integration.sql.verbs import became, require_owner
from tests.integration.sql.world import SqlWorld


@pytest.fixture
def once_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Does something after a commit has read the rows, and before it begins."""

    def then(act: Callable[[], Any]) -> None:
        real = KeptStatements.read_intact

        def opened(kept: KeptStatements, work: PreparedWork) -> bytes | None:
            found = real(kept, work)
            monkeypatch.setattr(KeptStatements, "read_intact", real)
            act()
            return found

        monkeypatch.setattr(KeptStatements, "read_intact", opened)

    return then


def test_who_has_read_the_rows_and_sleeps_over_an_abort_commits_nothing(
    keeping: SqlWorld, once_read: Any
):
    zombie, ours, work = keeping.participant(), keeping.participant(), keeping.prepare()
    said: list[Any] = []
    once_read(lambda: said.append(ours.abandon([work.identity])))
    assert zombie.commit([work]) == became([work], Outcome.ABORTED)
    assert said == [{work.identity: True}]
    assert (keeping.seen(), keeping.kept(), ours.open()) == ([], [], ())


def test_who_sleeps_until_nobody_knows_the_abort_any_more_commits_nothing(
    keeping: SqlWorld, once_read: Any
):
    zombie, ours, work = keeping.participant(), keeping.participant(), keeping.prepare()

    def long_after() -> None:
        ours.abort([work.identity])
        ours._book.begin_generation(work.detail[GENERATION] + 2, 0)

    once_read(long_after)
    with pytest.raises(StoreError, match=r"over long ago.*Nothing of it was made visible"):
        zombie.commit([work])
    assert keeping.seen() == []


def test_who_sleeps_over_anothers_commit_delivers_nothing_twice(keeping: SqlWorld, once_read: Any):
    zombie, ours, work = keeping.participant(), keeping.participant(), keeping.prepare()
    once_read(lambda: ours.commit([work]))
    assert zombie.commit([work]) == became([work], Outcome.COMMITTED)
    assert (keeping.seen(), keeping.kept()) == ([1, 2, 3], [])


def test_who_has_read_the_rows_before_they_were_removed_commits_nothing_that_was_called_lost(
    keeping: SqlWorld, once_read: Any
):
    """A person removes them, as the error of a damaged object says: the app computes them again."""
    zombie, ours, work = keeping.participant(), keeping.participant(), keeping.prepare()
    said: list[Any] = []

    def meanwhile() -> None:
        keeping.store.delete(keeping.kept())
        said.append(ours.commit([work]))

    once_read(meanwhile)
    assert zombie.commit([work]) == became([work], Outcome.ABORTED)
    assert said == [became([work], Outcome.ABORTED)]
    assert keeping.seen() == []


@pytest.mark.parametrize("how", ["cut off", "of the same size"])
def test_an_object_that_is_not_the_promised_one_is_not_delivered(keeping: SqlWorld, how: str):
    ours, work, other = keeping.participant(), keeping.prepare(), keeping.prepare(4, 5, 6, task=1)
    [path, others] = sorted(keeping.kept(), key=lambda each: other.key in each)
    data = keeping.store.get(path) or b""
    keeping.store.put(path, data[:-9] if how == "cut off" else keeping.store.get(others) or b"")
    with pytest.raises(StoreError, match=r"not those that were promised.*made visible") as refused:
        ours.commit([work])
    assert (keeping.seen(), ours.outcome([work])) == ([], became([work], Outcome.OPEN))
    assert [each.start for each in refused.value.remedies] == [True, True]
    keeping.store.put(path, data)  # the first of the two
    assert ours.commit([work]) == became([work], Outcome.COMMITTED)
    keeping.store.delete([others])  # the second: the app is told to compute it again
    assert ours.commit([other]) == became([other], Outcome.ABORTED)
    assert keeping.seen() == [1, 2, 3]


def test_a_checkpoint_that_is_not_mounted_says_nothing(keeping: SqlWorld):
    """Called aborted, the batch would be computed again, and come twice once the disk is back."""
    ours, work = keeping.participant(), keeping.prepare()
    there = {path: keeping.store.get(path) or b"" for path in keeping.store.below("eos")}
    keeping.store.delete(there)
    for asked in (ours.outcome, ours.commit):
        with pytest.raises(StoreError, match=r"Is the disk mounted.*Nothing was concluded"):
            asked([work])
    with pytest.raises(StoreError, match=r"is not there.*part of a copy"):
        connect(ours.members, _reach(keeping), store=keeping.store).outcome([work])
    for path, data in there.items():
        keeping.store.put(path, data)
    assert ours.commit([work]) == became([work], Outcome.COMMITTED)


def test_a_recovery_without_the_checkpoint_concludes_nothing(keeping: SqlWorld):
    ours, work = keeping.participant(), keeping.prepare()
    with pytest.raises(StoreError, match="Nothing was concluded"):
        connect(ours.members, _reach(keeping)).outcome([work])


def test_rows_are_committed_again_where_a_failover_lost_their_commit(
    keeping: SqlWorld, monkeypatch: pytest.MonkeyPatch
):
    """A replica that lagged has neither rows nor witness, and the checkpoint has both."""
    ours, work = keeping.participant(), keeping.prepare()
    with monkeypatch.context() as dying:
        dying.setattr(KeptStatements, "forget", lambda *_: None)
        ours.commit([work])
    keeping.sql(f"DELETE FROM {keeping.tag}")
    keeping.lose_witness(work.key)
    assert ours.commit([work]) == became([work], Outcome.COMMITTED)
    assert (keeping.seen(), keeping.kept()) == ([1, 2, 3], [])


def test_an_abort_is_no_delivery(keeping: SqlWorld):
    """Its row among the witnesses is not one."""
    ours, works = keeping.participant(), [keeping.prepare(1), keeping.prepare(2, task=1)]
    ours.commit(works[:1])
    ours.abandon([works[1].identity])
    with pytest.raises(OwnershipError, match="does not show 1 of its rows"):
        require_owner(ours, "/a", 8, b7=(decided(7, works=tuple(works)),))


def test_work_without_its_digest_is_of_another_release(keeping: SqlWorld):
    ours, work = keeping.participant(), keeping.prepare()
    strange = {name: value for name, value in work.detail.items() if name != "digest"}
    with pytest.raises(CheckpointFormatError, match="newer release"):
        ours.commit([msgspec.structs.replace(work, detail=strange)])


def test_a_sink_that_was_not_bound_to_a_checkpoint_is_refused(keeping: SqlWorld):
    with pytest.raises(ConfigurationError, match="does not know its checkpoint"):
        keeping.participant(store=None)


def _reach(keeping: SqlWorld) -> dict[str, Any]:
    sink = keeping.sink
    return {"orders": getattr(sink, "url", None) or sink.dsn}
