"""Rules that a random search seldom or never shows broken: a history of each, made by hand.

Each one runs twice: as the product is, where nothing is violated and every row arrives; and with
its rule broken, where it must be noticed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.backend import PIPELINE
from airflow_eos.core.protocol.decision import encode
from airflow_eos.errors import EosError, InputLostError, OwnershipError, SupersededError
from tests.model import mutations, test_found
from tests.model.broker import State
from tests.model.frames import Cut
from tests.model.judge import ProtocolBroken
from tests.model.mutations import Mutation
from tests.model.scheduler import Fault, Process
from tests.model.store import SteppedStore
from tests.model.test_found import up_to, world_of
from tests.model.wire import CLUSTER_ID
from tests.model.world import PREFIX, TIMEOUT_MS, World
from tests.support.pipelines import kafka_pipeline

pytestmark = pytest.mark.unit


def a_late_plan_replaces_what_was_evaluated() -> None:
    """Two plan batch 0 with other ends; the later rename stands in the log, the other one ran."""
    world = world_of([("a",)], [("b",)], [("c",)])
    first, second = two_planners(world, reach=2)
    second.resume()  # its plan has units 0 and 1; it evaluates them
    first.resume()  # its plan has unit 0
    up_to(world, second, "put offsets")
    ends_well(world)


def a_late_plan_comes_between_the_repair_and_sparks_read() -> None:
    """The entry *before* is where Spark starts to read the next batch."""
    world = world_of([("a",)], [("b",)], [("c",)])
    first, second = two_planners(world, reach=2)
    up_to(world, second, "put offsets")  # batch 0 with two units is complete
    second.crash()
    third = world.start_driver(Cut())
    up_to(world, third, "put drivers")
    up_to(world, third, "get metadata", passes=8)  # recovery has looked; all is repaired
    first.resume()
    up_to(world, third, "the end")
    ends_well(world)


def a_late_plan_replaces_that_of_an_empty_batch() -> None:
    """Where its decision would not say how far it went, the rows of the late plan are skipped."""
    world = world_of([], [("a",)], [("b",)])
    first, second = two_planners(world, reach=1, late=2)
    up_to(world, second, "put offsets")  # batch 0, unit 0, is complete
    second.crash()
    first.resume()
    ends_well(world)


def a_copy_put_back_gives_two_drivers_one_number() -> None:
    world = world_of([("z",)], [("a",)], [("b",)])
    first = world.start_driver(Cut())
    up_to(world, first, "put offsets", passes=1)  # batch 0 is complete
    first.crash()
    copy = world.objects.copy()
    sleeper = world.start_driver(Cut())
    up_to(world, sleeper, "append note")  # batch 1 is decided
    world.objects.put_back(copy)
    world.copies.append(copy)
    second = world.start_driver(Cut())
    up_to(world, second, "put decisions")  # it has the same number, and has planned batch 1
    up_to(world, second, "put decisions")
    up_to(world, sleeper, "the end")
    assert isinstance(sleeper.error, SupersededError), sleeper.error
    up_to(world, second, "the end")
    ends_well(world)


def a_recovery_commits_what_a_dead_driver_had_not_noted() -> None:
    """Then a copy is put back that is older than the decision: its driver would deliver again."""
    world = world_of([("a",)], [("b",)])
    first = world.start_driver(Cut())
    up_to(world, first, "put decisions")  # it seals
    copy = world.objects.copy()  # batch 0 is planned
    up_to(world, first, "append note")
    world.scheduler.crash_all()
    newest = world.objects.copy()
    recovery = world.start_recovery()
    up_to(world, recovery, "the end")
    assert recovery.error is None
    world.objects.put_back(copy)
    second = world.start_driver(Cut())
    up_to(world, second, "the end")
    assert isinstance(second.error, OwnershipError), second.error
    world.objects.put_back(newest)
    ends_well(world)


def a_sleeper_whose_tasks_fail_gives_up_what_it_no_longer_has() -> None:
    """Its place was pruned, so it wins it; what is open is promised by a successor."""
    world = world_of([("a",)], [("b",)], [("c",)], [("d",)], [("e",)], retained=1)
    sleeper = world.start_driver(Cut())
    up_to(world, sleeper, "wait for", passes=1)  # of batch 1, whose first attempt is its own
    second = world.start_driver(Cut())
    while "eos/decisions/4/1.json" not in world.objects.copy():
        up_to(world, second, "append note")
    assert world.broker.ongoing()  # batch 4 is decided, and open
    assert "eos/decisions/1/1.json" not in world.objects.copy()
    fail_all_tasks_of(world, sleeper)
    up_to(world, sleeper, "the end")
    up_to(world, second, "the end")
    ends_well(world)


def a_promise_whose_outcome_nobody_can_tell() -> None:
    """Aborted by its timeout, its id expired, its rows past retention: a person is asked."""
    world = world_of([("a",)], [("b",)])
    first = world.start_driver(Cut())
    up_to(world, first, "EndTxn")  # of batch 0, which is decided
    world.scheduler.crash_all()
    world.broker.pass_time(TIMEOUT_MS)
    world.broker.settle_down()
    world.broker.expire_ids()
    world.broker.pass_retention()
    second = world.start_driver(Cut())
    up_to(world, second, "the end")
    assert type(second.error).__name__ == "DecisionNeededError", second.error


def a_memory_that_was_deleted_and_then_an_older_copy() -> None:
    """The next start notes its newest promise anew: whoever comes with less is refused."""
    world = world_of([("a",)], [("b",)])
    first = world.start_driver(Cut())
    up_to(world, first, "put offsets", passes=1)  # batch 0 is complete
    copy = world.objects.copy()
    up_to(world, first, "the end")
    newest = world.objects.copy()
    world.records.clear()
    second = world.start_driver(Cut())
    up_to(world, second, "the end")
    assert second.error is None, second.error
    world.objects.put_back(copy)
    world.copies.append(copy)
    third = world.start_driver(Cut())
    up_to(world, third, "the end")
    assert isinstance(third.error, OwnershipError), third.error
    world.objects.put_back(newest)
    ends_well(world)


def another_program_under_our_prefix() -> None:
    """Flink's ids were of our form once: it is there at the first start, and beside us later."""
    world = world_of([("a",)], [("b",)])
    held = world.broker.init("etl-0-7", TIMEOUT_MS)[1]
    world.broker.produce(held, 0, ("theirs",))
    first = world.start_driver(Cut())
    up_to(world, first, "the end")
    assert isinstance(first.error, OwnershipError), first.error
    assert world.broker.transactions[held].state is State.OPEN
    world.broker.end(held, commit=False, version=5)
    world.broker.settle_down()
    second = world.start_driver(Cut())
    up_to(world, second, "put commits")
    beside = world.broker.init("etl-0-8", TIMEOUT_MS)[1]
    world.broker.produce(beside, 1, ("theirs, too",))
    up_to(world, second, "the end")
    third = world.start_driver(Cut())
    up_to(world, third, "the end")
    assert third.error is None, third.error
    assert world.broker.transactions[beside].state is State.OPEN


def a_checkpoint_that_stands_where_another_pipeline_was() -> None:
    """Its numbers are as high as they like: what is remembered is another's."""
    world = world_of([("a",)], [("b",)])
    first = world.start_driver(Cut())
    up_to(world, first, "the end")
    pipeline = kafka_pipeline(PREFIX, CLUSTER_ID)
    world.store.put(PIPELINE, encode(structs.replace(pipeline, id="another")))
    second = world.start_driver(Cut())
    up_to(world, second, "the end")
    assert isinstance(second.error, OwnershipError), second.error


def a_copy_at_another_place_while_the_first_runs() -> None:
    """Both have one id: only the one that is where the claim says delivers."""
    world = world_of([("a",)], [("b",)])
    first = world.start_driver(Cut())
    up_to(world, first, "put decisions", passes=1)  # batch 0 is planned and sealed
    objects = SteppedStore(world.judge)
    objects.put_back(world.objects.copy())
    here = world.store, world.objects
    world.store, world.objects = CheckpointStore(objects, "elsewhere"), objects
    second = world.start_driver(Cut())
    up_to(world, second, "the end")
    assert isinstance(second.error, OwnershipError), second.error
    world.store, world.objects = here
    world.judge.put_back(world.objects.copy())
    up_to(world, first, "the end")
    ends_well(world)


HISTORIES: dict[Mutation, Callable[[], None]] = {
    mutations.offsets_from_the_file: a_late_plan_replaces_what_was_evaluated,
    mutations.first_batch_does_not_verify: a_late_plan_comes_between_the_repair_and_sparks_read,
    mutations.empty_batches_are_not_decided: a_late_plan_replaces_that_of_an_empty_batch,
    mutations.term_without_a_nonce: a_copy_put_back_gives_two_drivers_one_number,
    mutations.recovery_notes_nothing: a_recovery_commits_what_a_dead_driver_had_not_noted,
    mutations.gives_up_without_a_look: a_sleeper_whose_tasks_fail_gives_up_what_it_no_longer_has,
    mutations.memory_is_not_noted_anew: a_memory_that_was_deleted_and_then_an_older_copy,
    mutations.ids_of_others_are_ours: another_program_under_our_prefix,
    mutations.a_place_is_an_identity: a_checkpoint_that_stands_where_another_pipeline_was,
    mutations.an_id_is_a_place: a_copy_at_another_place_while_the_first_runs,
    mutations.unknown_is_guessed_committed: a_promise_whose_outcome_nobody_can_tell,
    mutations.noted_after_the_look: (
        test_found.test_a_driver_that_wakes_up_to_a_copy_put_back_in_place_notes_and_ends
    ),
    mutations.newer_terms_do_not_count: (
        test_found.test_a_driver_that_wakes_up_to_a_copy_put_back_in_place_notes_and_ends
    ),
}
for broken in (
    mutations.no_seal_at_the_start,
    mutations.honoured_without_a_look,
    mutations.the_log_is_not_listed,
):
    HISTORIES[broken] = (
        test_found.test_a_driver_whose_batch_was_closed_meanwhile_ends_and_does_not_seal_for_ever
    )


@pytest.mark.parametrize(
    "history", dict.fromkeys(HISTORIES.values()), ids=lambda history: history.__name__
)
def test_nothing_is_violated_as_the_product_is(history: Callable[[], None]) -> None:
    history()


@pytest.mark.parametrize("broken", HISTORIES, ids=lambda broken: broken.__name__)
def test_a_history_notices_each_rare_rule_that_is_broken(
    broken: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, ProtocolBroken, EosError)) as found:
        HISTORIES[broken]()
    print(str(found.value)[-300:])  # noqa: T201 - pytest -s shows by what it was noticed


def test_each_rare_rule_has_a_history_or_a_reason() -> None:
    assert set(mutations.RARE) == set(HISTORIES) | mutations.HARMLESS_ALONE


def test_what_a_person_gives_up_is_told_of_all_outputs() -> None:
    """Found by the model: the error spoke of the first output, and accepting gives up the batch."""
    world = World([[("0a", "0b")]], version=2, retained=9, several=True)
    first = world.start_driver(Cut())
    up_to(world, first, "EndTxn")
    world.scheduler.crash_all()
    for _ in range(2):
        world.broker.pass_time(TIMEOUT_MS)
    lost = iter([True, False])
    world.lose_input(retention=False, until=1, lost=lambda: next(lost))
    second = world.start_driver(Cut())
    world.scheduler.run(second)
    assert isinstance(second.error, InputLostError), second.error
    assert [each.costs for each in second.error.remedies] == ["2 rows"]


def two_planners(world: World, *, reach: int, late: int = 1) -> tuple[Process, Process]:
    """Both have seen that batch 0 is not planned, and are about to write their plans."""
    first = world.start_driver(Cut(reach=late))
    up_to(world, first, "put offsets")
    second = world.start_driver(Cut(reach=reach))
    up_to(world, second, "put offsets")
    return first, second


def fail_all_tasks_of(world: World, driver: Process) -> None:
    """Spark gives the job up: no task of it can be heard."""
    for _ in range(40):
        tasks = [t for t in world.scheduler.alive if t.name.startswith(f"{driver.name} task")]
        if not tasks and driver.doing.startswith("wait for") and driver.runnable:
            driver.resume()
        elif not tasks:
            return
        for task in tasks:
            while task.alive:
                task.resume(Fault.REFUSED)


def ends_well(world: World) -> None:
    """No more faults: one driver starts, and every row is there once."""
    world.scheduler.crash_all()
    last = world.start_driver(Cut())
    world.scheduler.run(last)
    assert last.error is None, last.error
    world.judge.all_delivered()
    assert not world.judge.violations, "\n".join(world.judge.history)
