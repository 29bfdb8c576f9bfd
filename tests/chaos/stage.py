"""The folder, the processes and the input of one history, and what befalls them."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.chaos.aftermath import empty, pass_retention, recover_at_once
from tests.chaos.arena import OUT_PARTITIONS, Arena
from tests.chaos.driver import ASKED, FINISHED, drive
from tests.chaos.elsewhere import Watched, places
from tests.chaos.journal import Journal
from tests.chaos.outputs import table_of
from tests.chaos.person import rule_by_what_was_read
from tests.chaos.processes import Forked, Process, wait_until
from tests.chaos.proxy import Rule
from tests.chaos.readers import LiveReaders
from tests.chaos.rivals import race, restore_a_copy, start_another, start_rival, take_over
from tests.chaos.scenario import RACING, Incident, Scenario, name_of
from tests.chaos.settings import POSTGRES, DriverSettings
from tests.chaos.spark_data import Input
from tests.chaos.spark_loop import committed_rows, latest_commit
from tests.chaos.topic_input import TopicInput

STARTS_AT_MOST = 8
LAST_ROWS = 8


class Stage:
    """One history with the loop engine; another engine overrides ``launch``."""

    pace = 1.0
    """By how much slower than the loop engine it is: what comes by the clock comes later."""
    look_s = 0.01
    reached_s = 120.0  # a machine that stalls; what cannot be reached any more is seen at once
    bound_s = 300.0
    start_s = 120.0
    batches_s = 120.0

    def __init__(self, arena: Arena, scenario: Scenario) -> None:
        self.arena = arena
        self.scenario = scenario
        self.name = name_of(scenario)
        self.topic = f"{self.name}-out"
        self.folder = arena.folder / self.name
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "runs").mkdir(parents=True)
        self.journal = Journal(self.folder / "history.jsonl", "harness")
        self.checkpoint = self.folder / "checkpoint"
        """Where it is copied and put in place, which is done on a local disk alone."""
        self.store = arena.where.opened(f"{self.name}/checkpoint")
        self.live = LiveReaders(
            arena.bootstrap,
            self.topic,
            OUT_PARTITIONS,
            self.journal,
            scenario.isolation,
            self.store,
        )
        self.dsn = arena.postgres.dsn if POSTGRES in scenario.outputs else ""
        there = places(self.folder, self.name, self.dsn, scenario.outputs)
        self.fed: list[str] = []
        self._placed: dict[str, tuple[int, int]] = {}
        self.elsewhere = Watched(there, self.journal, self.store, self._placed)
        self.finished = False
        self.chance = random.Random(f"{scenario.seed} played")
        self._input: Input | TopicInput = Input(self.folder, scenario.partitions)
        self._started: list[Process] = []
        self.journal.note(
            "history",
            seed=scenario.seed,
            kind=scenario.kind,
            topic=self.topic,
            ordered=scenario.ordered,
            mode=self.mode,
            lone=scenario.lone,
            faults=[incident.fault for incident in scenario.incidents],
            scenario=msgspec.to_builtins(scenario),
        )

    @property
    def mode(self) -> str:
        """Whether the output is the input's rows, or a count for each key."""
        return "rows"

    @property
    def reach(self) -> dict[str, str]:
        """What a recovery is told of the participants besides Kafka."""
        return {POSTGRES: self.dsn} if self.dsn else {}

    # -- processes -------------------------------------------------------------------------------

    def settings(self, name: str, incident: Incident, *, failpoints: str = "") -> DriverSettings:
        proxied = incident.rule is not None
        return DriverSettings(
            name=name,
            folder=str(self.folder),
            place=f"{self.arena.where.url}/{self.name}",
            storage_options=self.arena.where.options,
            bootstrap=self.arena.proxy.address if proxied else self.arena.bootstrap,
            topic=self.topic,
            prefix=self.name,
            kind=self.scenario.kind,
            partitions=self.scenario.partitions,
            width=incident.width,
            turn=self._turn(),
            batch_rows=self.scenario.batch_rows,
            timeout_s=incident.timeout_s,
            failpoints=failpoints,
            failpoints_dir=str(self.folder / name),
            control=self.scenario.control,
            retained=self.scenario.retained,
            gap_s=incident.gap_s,
            may_be_refused=incident.copy.startswith("in place"),
            outputs=self.scenario.outputs,
            dsn=self.dsn,
            reach=self.reach,
        )

    def _turn(self) -> int:
        given = self.scenario.turns
        return given[len(self._started) % len(given)] if given else self.chance.randrange(4)

    def launch(self, settings: DriverSettings) -> Process:
        return Forked(drive, settings)

    def start(
        self, settings: DriverSettings, launch: Callable[[DriverSettings], Process] | None = None
    ) -> Process:
        Path(settings.failpoints_dir).mkdir(exist_ok=True)
        self.journal.note("start", name=settings.name, failpoints=settings.failpoints)
        started = (launch or self.launch)(settings)
        self._started.append(started)
        return started

    def end_all(self) -> None:
        for started in self._started:
            started.end()

    def admitted(self, driver: Process) -> bool:
        """Whether it has passed every refusal."""
        return driver.settings.admitted.exists()

    def await_admission(self, driver: Process) -> bool:
        """Wait until it has passed every refusal, or ended."""
        wait_until(lambda: self.admitted(driver) or driver.exit_code is not None, self.start_s)
        return self.admitted(driver)

    def ended_by(self, driver: Process) -> str:
        """The error that a driver named as it ended, '' if none."""
        named = [
            event["by"]
            for event in map(json.loads, driver.settings.journal.read_text().splitlines())
            if (event["event"], event["who"]) == ("ended", driver.settings.name)
        ]
        return named[-1] if named else ""

    def feed(self, count: int) -> None:
        placed = self._input.append(self.rows(count))
        self._placed |= {value: (partition, offset) for partition, offset, _, value in placed}
        self.journal.note("input", rows=placed)

    def rows(self, count: int) -> list[tuple[int, str, str]]:
        """The next rows of the input: partition, key, value."""
        rows = []
        for number in range(len(self.fed), len(self.fed) + count):
            key = f"k{self.chance.randrange(self.scenario.keys)}"
            self.fed.append(f"{self.name}:{number}")
            rows.append((sum(key.encode()) % self.scenario.partitions, key, self.fed[-1]))
        return rows

    def idle(self) -> bool:
        """Whether all that was fed is committed, so that nothing more will be passed."""
        return committed_rows(self.store) == len(self.fed)

    # -- what befalls it -------------------------------------------------------------------------

    def incident(self, number: int, incident: Incident) -> None:
        incident = self._paced(incident)
        self.feed(incident.feed)
        if incident.rival == RACING:
            race(self, number, incident)
            self._afterwards(number, incident)
            return
        settings = self.settings(f"driver-{number}", incident, failpoints=incident.failpoints)
        rule = self.arena.proxy.add(Rule(self.name, *incident.rule)) if incident.rule else None
        self._limit(incident.role and f"SET {incident.role}")
        driver = self.start(settings)
        rival = None
        if incident.rival == "at-start":
            rival = start_rival(self, number, incident)
        self._befall(driver, incident, rule)
        self._befall_postgres(incident)
        self.feed(self.chance.choice((0, 20, 40)))
        if incident.rival == "when-stopped":
            rival = take_over(self, driver, number, incident)
        if incident.copy:
            rival = restore_a_copy(self, driver, number, incident)
            time.sleep(self.chance.uniform(0.2, 1.0))
        if incident.other:
            start_another(self, driver, number, incident)
        if incident.beside:
            recover_at_once(self, number, incident)
        for process in filter(None, (driver, rival)):
            self.kill(process, incident)
        self._afterwards(number, incident)

    def _paced(self, incident: Incident) -> Incident:
        """What is left alone, and what times out, takes as much longer as the engine does."""
        names = ("at_s", "apart_s", "left_s", "timeout_s")
        longer = {name: getattr(incident, name) * self.pace for name in names}
        return msgspec.structs.replace(incident, **longer)

    def _afterwards(self, number: int, incident: Incident) -> None:
        self.arena.proxy.forget(self.name)
        if incident.left_s and not incident.rival:
            time.sleep(incident.left_s)
        if incident.retention:
            pass_retention(self)
        if incident.emptied:
            empty(self, incident)
        if incident.input_gone:
            self.pass_retention_of_input(self.folder / f"driver-{number}" / "settled.hit")
        if not incident.beside:
            recover_at_once(self, number, incident)
        self._limit(incident.role and "RESET ALL")

    def _limit(self, setting: str) -> None:
        if setting:
            self.arena.tell_postgres(f"ALTER ROLE postgres {setting}")

    def _befall_postgres(self, incident: Incident) -> None:
        if incident.database_s is not None:
            self.arena.restart_postgres(incident.database_s)
            time.sleep(self.chance.uniform(0.0, 1.0))
        if incident.altered:
            done = self.arena.tell_postgres(incident.altered.format(table_of(self.name)))
            self.journal.note("altered", by=incident.altered, done=done)

    def pass_retention_of_input(self, settled: Path) -> None:
        """Once the newest batch is settled: what it and those before it have read is gone."""
        raise NotImplementedError("its input is no topic")

    def _befall(self, driver: Process, incident: Incident, rule: Rule | None) -> None:
        """Wait for the failpoint, or for the time, and break what is to be broken."""
        self.await_work(driver)
        place = driver.settings.failpoints.partition("=")[0]
        if place:
            mark = Path(driver.settings.failpoints_dir) / f"{place}.hit"
            reached = wait_until(
                lambda: mark.exists() or driver.exit_code is not None or self.idle(),
                self.reached_s,
                every_s=self.look_s,
            )
            if "stop" in incident.failpoints:
                wait_until(driver.stopped, 60 if mark.exists() else 1)
            elif place.startswith("task"):
                time.sleep(self.chance.uniform(0.05, 0.4))  # the task runs again
            else:
                driver.wait(60 if mark.exists() else 2)
            self.journal.note("fault", fault=incident.fault, reached=reached and mark.exists())
            return
        if rule is not None:
            wait_until(
                lambda: rule.hit or driver.exit_code is not None or self.idle(),
                self.reached_s,
                every_s=self.look_s,
            )
            self.journal.note("fault", fault=incident.fault, reached=rule.hit)
        time.sleep(incident.at_s)
        if incident.broker:
            self.arena.restart_broker()
        running = driver.executors() if incident.executor else []
        if running:
            self.chance.choice(running).kill()
            time.sleep(self.chance.uniform(0.05, 0.4))  # its tasks run again
        if incident.signal:
            driver.signal(incident.signal, group=incident.group)
        if rule is None:
            hit = bool(running) or not incident.executor
            self.journal.note("fault", fault=incident.fault, reached=hit)

    def await_batches(self, driver: Process, batch: int) -> None:
        """Feed what so many batches take, and wait until the driver has committed them."""
        store = driver.settings.store()
        missing = batch - latest_commit(store)
        if missing > 0:
            self.feed(missing * self.scenario.batch_rows * self.scenario.partitions)
        wait_until(
            lambda: latest_commit(store) >= batch or driver.exit_code is not None or self.idle(),
            self.batches_s,
            every_s=self.look_s,
        )

    def ended(self, driver: Process, code: int | None) -> None:
        """It ended by itself with this code, or runs where it is None.

        Those of the loop engine have written down why.
        """

    def await_work(self, driver: Process) -> None:
        """Wait until the driver is about to work, where that takes a while."""

    def kill(self, process: Process, incident: Incident) -> None:
        """SIGKILL it, with what belongs to it unless the incident is of one that goes alone."""
        alone = goes_alone(incident)
        ended = process.exit_code
        if process.exit_code is None or not alone:
            process.signal("KILL", group=not alone)
        process.wait(10)
        self.ended(process, ended)
        self.journal.note("killed", name=process.settings.name, code=process.exit_code)
        if process.exit_code == ASKED:
            rule_by_what_was_read(self)

    def let_live_reader_catch_up(self) -> dict[int, int]:
        """Wait until it has read what is stable now; returns up to where."""
        ends: dict[int, int] = self.arena.offsets(self.topic, stable=True)
        assert wait_until(lambda: self.live.has_read(ends), 300), "the live reader is behind"
        return ends

    # -- the end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the app catch up, starting it again as its restart strategy would.

        In large batches: what was to befall it has befallen it.
        """
        self.feed(15)
        last = self._paced(Incident(fault="none", width=self.scenario.incidents[-1].width))
        deadline = time.monotonic() + self.bound_s
        (self.folder / "stop").touch()
        for number in range(STARTS_AT_MOST):
            settings = self.settings(f"final-{number}", last)
            most = LAST_ROWS * settings.batch_rows
            driver = self.start(msgspec.structs.replace(settings, batch_rows=most))
            code = driver.wait(max(1.0, deadline - time.monotonic()))
            self.ended(driver, code)
            self.journal.note("exit", name=driver.settings.name, code=code)
            driver.end()
            if code == ASKED:
                rule_by_what_was_read(self)
            if code == FINISHED:
                self.finished = True
                return


def goes_alone(incident: Incident) -> bool:
    """Whether the workers of a driver that is killed go on."""
    return incident.fault.endswith("workers go on")
