"""A second driver on the same checkpoint, and who must not be let in at all."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.core.checkpoint import CheckpointStore, newest_term
from airflow_eos.core.checkpoint.standby import hand_over, standbys
from airflow_eos.errors import EosError
from tests.chaos.aftermath import recover_at_once
from tests.chaos.processes import Process, wait_until
from tests.chaos.readers import decisions, decisions_in
from tests.chaos.settings import PATIENT_S
from tests.chaos.spark_loop import latest_commit

if TYPE_CHECKING:
    from tests.chaos.scenario import Incident
    from tests.chaos.stage import Stage


def start_rival(stage: Stage, number: int, incident: Incident, *, failpoints: str = "") -> Process:
    settings = stage.settings(f"rival-{number}", incident, failpoints=failpoints)
    most = settings.batch_rows * incident.rival_rows
    return stage.start(msgspec.structs.replace(settings, batch_rows=most))


def take_over(stage: Stage, driver: Process, number: int, incident: Incident) -> Process:
    """Another driver goes on beside one that stands still; then that one wakes."""
    if incident.timeout_s < PATIENT_S * stage.pace:
        time.sleep(incident.timeout_s + 0.4)
    before = latest_commit(stage.store)
    rival = start_rival(stage, number, incident)
    if incident.past:
        stage.await_batches(rival, before + incident.past)
    time.sleep(incident.left_s)
    stage.journal.note("woken", name=driver.settings.name)
    driver.signal("CONT", group=True)
    time.sleep(stage.chance.uniform(0.2, 1.2))
    return rival


def race(stage: Stage, number: int, incident: Incident) -> None:
    """Two drivers from the start, and what strikes the first that comes to it, or one by chance.

    Whoever is left goes on for as many batches as the incident says; then nobody is left.
    """
    of_both = "" if incident.behind else incident.failpoints
    driver = stage.start(stage.settings(f"driver-{number}", incident, failpoints=of_both))
    if incident.behind:
        stage.await_work(driver)
    time.sleep(incident.apart_s)
    rival = start_rival(stage, number, incident, failpoints=incident.failpoints)
    both = (driver, rival)
    stage.await_work(driver)
    reached = True
    if incident.behind:
        reached = _end_before(stage, driver, rival, incident)
    if incident.failpoints:
        place = incident.failpoints.partition("=")[0]
        marks = [Path(each.settings.failpoints_dir) / f"{place}.hit" for each in both]
        wait_until(
            lambda: any(mark.exists() for mark in marks) or not _alive(both) or stage.idle(),
            stage.reached_s,
            every_s=stage.look_s,
        )
        reached = reached and any(mark.exists() for mark in marks)
    elif incident.signal:
        time.sleep(incident.at_s)
        stage.chance.choice(both).signal(incident.signal, group=incident.group)
    stage.journal.note("fault", fault=incident.fault, reached=reached)
    stage.feed(stage.chance.choice((0, 20, 40)))
    if incident.beside:
        recover_at_once(stage, number, incident)
    # One that stands still commits nothing before it is woken.
    goes_on = {"": both, "STOP": (rival,)}.get(incident.behind, (rival, driver))
    if incident.past and (left := _alive(goes_on)):
        stage.await_batches(left[0], latest_commit(stage.store) + incident.past)
    if incident.behind == "STOP":
        stage.journal.note("woken", name=driver.settings.name)
        driver.signal("CONT", group=True)
        time.sleep(stage.chance.uniform(0.2, 1.2))
    for each in stage.chance.sample(both, len(both)):
        stage.kill(each, incident)


def _end_before(stage: Stage, driver: Process, rival: Process, incident: Incident) -> bool:
    """Let the first end, or stand still, once the second stands by; False: it never did."""

    def stands_by() -> bool:
        return any(each.behind == newest_term(stage.store) > 0 for each in standbys(stage.store))

    def settled() -> bool:
        return stands_by() or len(_alive((driver, rival))) < 2

    wait_until(settled, stage.start_s, every_s=stage.look_s)
    if not stands_by() or driver.exit_code is not None:
        return False
    stage.feed(incident.feed)
    time.sleep(stage.chance.uniform(0.0, incident.at_s))
    if incident.behind == "KILL":
        stage.kill(driver, incident)
    elif incident.behind == "STOP":
        driver.signal("STOP", group=incident.group)
    else:
        try:
            hand_over(stage.store, requested_by="a person", reason="a history")
        except EosError as error:
            stage.journal.note("not handed over", why=str(error))
            return False
        if driver.wait(stage.start_s) is None:
            return False
    stage.feed(incident.feed)

    def follows() -> bool:
        return stage.admitted(rival) or rival.exit_code is not None

    if not wait_until(follows, stage.start_s, every_s=stage.look_s):
        stage.journal.note("crash", text=f"{rival.settings.name} stood by and did not follow")
    return True


def _alive(drivers: Sequence[Process]) -> list[Process]:
    return [each for each in drivers if each.exit_code is None]


# --- intrusions -----------------------------------------------------------------------------------
# Who must not be let in: an older copy of the checkpoint, and a second pipeline with the prefix.
#
# Each is started as a driver of its own; whether it had to be refused follows from what readers
# have got by then, and is written down for the checker beside what became of it.


REFUSALS = ("OwnershipError",)
_TRIES = 3
_HARMED = 3
_RENAME_EXCHANGE = 2
_HERE = -100


def restore_a_copy(
    stage: Stage, driver: Process, number: int, incident: Incident
) -> Process | None:
    """Copy the checkpoint as it is now, let the driver go on, put the copy in its place.

    Returns the driver that was let in on it, rightly or not: the copy is the checkpoint from then
    on. Where it is refused, what the copy lacks is put back.
    """
    copy = _copy(stage, driver)
    stage.await_batches(driver, latest_commit(CheckpointStore.open(copy)) + incident.past)
    alive = incident.copy.startswith("in place")
    if not alive:
        stage.kill(driver, incident)
    elif incident.copy == "in place":
        stop(driver)
    must = _must(stage, copy)
    if (alive and must == "start") or "live" in incident.copy:
        must = ""  # the first driver moves on meanwhile
    _exchange(copy, stage.checkpoint)
    if "live" in incident.copy:
        # Seed 13000057: the state of the batch in flight stayed in the former folder, and Spark
        # refused every start that lacked it. No rule of ours can bring it back.
        _fill(stage.checkpoint / "state", copy / "state")
    what = f"a copy that is {incident.copy}"
    let_in = _try(stage, number, incident, what=what, must=must, checkpoint="checkpoint")
    if let_in is None and alive:
        _fill(stage.checkpoint, copy)  # the first driver goes on writing there
    elif let_in is None:
        _exchange(copy, stage.checkpoint)
    driver.signal("CONT", group=True)
    if let_in is not None and must == "refuse":
        _show_harm(stage, let_in)
    return let_in


def start_another(stage: Stage, driver: Process, number: int, incident: Incident) -> None:
    """Start a second pipeline with the prefix of the first, once that one is let in."""
    if not stage.await_admission(driver):
        return
    if "left alone" in incident.other:
        stage.kill(driver, incident)
    what = f"a second pipeline with {incident.other}"
    checkpoint = f"another-{number}"
    let_in = _try(stage, number, incident, what=what, must="refuse", checkpoint=checkpoint)
    if let_in is not None:
        _show_harm(stage, let_in)
        let_in.end()


def stop(driver: Process) -> None:
    driver.signal("STOP", group=True)
    wait_until(lambda: driver.stopped() or driver.exit_code is not None, 60)


def _show_harm(stage: Stage, let_in: Process) -> None:
    """Whoever was let in wrongly runs a few batches."""
    stage.await_batches(let_in, latest_commit(let_in.settings.store()) + _HARMED)


def _copy(stage: Stage, driver: Process) -> Path:
    """A copy of the checkpoint at a moment at which the driver writes nothing.

    Where it has not come to its failpoint it is stopped as it is, and never comes to it.
    """
    if not driver.stopped():
        stop(driver)
        for failpoint in driver.settings.failpoints.split(","):
            place = failpoint.partition("=")[0]
            (Path(driver.settings.failpoints_dir) / f"{place}.hit").touch()
    stage.checkpoint.mkdir(exist_ok=True)  # a driver that was stopped early has made none
    copy = stage.folder / f"checkpoint-{len(list(stage.folder.glob('checkpoint-*')))}"
    shutil.copytree(stage.checkpoint, copy)
    stage.journal.note("copied", committed=latest_commit(CheckpointStore.open(copy)))
    driver.signal("CONT", group=True)
    return copy


def _try(
    stage: Stage, number: int, incident: Incident, *, what: str, must: str, checkpoint: str
) -> Process | None:
    """Start a driver, again where the faults explain its end, until it is let in or refused."""
    let_in, ended_by = None, ""
    for attempt in range(_TRIES):
        settings = msgspec.structs.replace(
            stage.settings(f"tried-{number}-{attempt}", incident),
            checkpoint_name=checkpoint,
            topic=f"{stage.name}-other" if "another topic" in incident.other else stage.topic,
            may_be_refused=True,
        )
        driver = stage.start(settings)
        if stage.await_admission(driver):
            let_in = driver
            break
        driver.end()
        ended_by = stage.ended_by(driver)
        if ended_by.startswith(REFUSALS):
            break
    stage.journal.note(
        "tried",
        what=what,
        must=must,
        refusals=REFUSALS,
        let_in=let_in is not None,
        ended_by=ended_by,
    )
    return let_in


def _must(stage: Stage, copy: Path) -> str:
    """What has to become of a driver on this copy: "refuse", "start", or either ("").

    It is older than what was delivered where readers have rows of a transaction that the newest
    decision with such rows names, and the copy lacks that decision. It is as new as can be where
    it lacks no decision that would commit something.
    """
    stage.let_live_reader_catch_up()
    held = list(decisions_in(CheckpointStore.open(copy)))
    known = {decision["nonce"] for decision in held}
    commits = [d for d in decisions(stage.folder, stage.store) if d["verdict"] == "commit"]
    delivered = [
        (decision["batch_id"], decision["attempt"], decision["decided_at_ms"], decision["nonce"])
        for decision in commits
        if any(_first_place(each) in stage.live.places for each in decision["transactions"])
    ]
    if delivered and max(delivered)[-1] not in known:
        return "refuse"
    oldest = min((d["batch_id"] for d in held), default=0)
    lacking = [d for d in commits if d["batch_id"] >= oldest and d["nonce"] not in known]
    return "" if lacking else "start"


def _first_place(transaction: dict[str, list[dict[str, int]]]) -> tuple[int, int]:
    written = transaction["written"][0]
    return written["partition"], written["first"]


def _exchange(one: Path, other: Path) -> None:
    """Swap two folders in one step, so that who works in one of them never finds it missing."""
    names = (os.fsencode(one), os.fsencode(other))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), f"renameat2 {one} {other}")


def _fill(checkpoint: Path, aside: Path) -> None:
    """Put back every file that is not there."""
    for file in aside.rglob("*"):
        target = checkpoint / file.relative_to(aside)
        if file.is_file() and not file.name.startswith("."):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy2(file, target)
