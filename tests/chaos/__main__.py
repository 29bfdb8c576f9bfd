"""``make chaos N=200 SEED=7``: play random histories, judge each, say what was found."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from airflow_eos.errors import CheckpointFormatError
from tests.chaos.arena import Arena
from tests.chaos.arrow_stage import ArrowStage, over_arrow
from tests.chaos.chance import killed_often, racing_scenario, random_scenario, standing_by
from tests.chaos.faults import with_outputs
from tests.chaos.play import Played, Wedged, play
from tests.chaos.processes import end_everything
from tests.chaos.scenario import Scenario, topics_of
from tests.chaos.settings import ALONE, ARROW, KINDS, PLACES, SOURCES
from tests.chaos.stage import Stage
from tests.chaos.summary import Summary
from tests.support.stores import Where, place

Staged = Callable[[Arena, Scenario], Stage]

BUILD = Path(__file__).parents[2] / "build"
AT_A_TIME = 40  # topics made by one request, and histories whose topics are there together
SEEDS_APART = 1_000_000


def main() -> int:
    arguments = _arguments()
    scenarios = _scenarios(arguments)
    if arguments.recovery_times:
        scenarios = [killed_often(arguments.seed * SEEDS_APART, arguments.recovery_times)]
    if arguments.control:
        scenarios = [msgspec.structs.replace(each, control=arguments.control) for each in scenarios]
    console = Console()
    engine = _named(arguments)
    console.print(
        f"{len(scenarios)} histories, seed {arguments.seed}, engine {engine}, "
        f"to {','.join(arguments.outputs)}"
    )
    summary = Summary(arguments.seed, engine, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        place(arguments.checkpoint, BUILD / "chaos") as where,
        Arena(BUILD / "chaos", _features(arguments.transaction_version), where) as arena,
        _engine(arguments, where) as stage,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        bar = progress.add_task("histories", total=len(scenarios))
        try:
            for result in _results(arena, scenarios, arguments, stage):
                summary.add(result)
                progress.update(bar, advance=1, description=f"{summary.violated} violated")
                summary.write(BUILD / "chaos.json")
        except KeyboardInterrupt:
            end_everything()
            progress.stop()
            summary.show()
            os._exit(130)  # the broker and the fork server go with us
    summary.show()
    return 1 if summary.violated or summary.broken else 0


def _scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    if arguments.only is not None:
        return [_scenario(arguments.only, arguments)]
    first = arguments.seed * SEEDS_APART
    every = (_scenario(seed, arguments) for seed in range(first, first + SEEDS_APART))
    wanted = (
        scenario
        for scenario in every
        if any(arguments.fault in incident.fault for incident in scenario.incidents)
    )
    return list(islice(wanted, arguments.histories))


def _scenario(seed: int, arguments: argparse.Namespace) -> Scenario:
    if arguments.race:
        raced = racing_scenario(seed)
        return standing_by(raced) if arguments.standbys else raced
    drawn = random_scenario(seed)
    if (arguments.engine, arguments.source) == ("loop", ARROW):
        drawn = over_arrow(drawn)
    return drawn if arguments.outputs == ALONE else with_outputs(drawn, arguments.outputs)


def _results(
    arena: Arena, scenarios: list[Scenario], arguments: argparse.Namespace, stage: Staged
) -> Iterator[Played | Wedged | str]:
    """Played histories as they end, or what broke the harness."""
    ends_at = time.monotonic() + 60 * arguments.minutes
    for start in range(0, len(scenarios), AT_A_TIME):
        some = scenarios[start : start + AT_A_TIME]
        topics = [topic for scenario in some for topic in topics_of(scenario)]
        arena.create_topics(topics)
        pool = ThreadPoolExecutor(arguments.jobs)
        try:
            waiting: list[Future[Played | Wedged | str]] = [
                pool.submit(_play, arena, scenario, stage, ends_at) for scenario in some
            ]
            for done in as_completed(waiting):
                if done.result() != "":
                    yield done.result()
        finally:
            # Interrupted, main ends every process; nobody waits for the other histories.
            pool.shutdown(wait=False, cancel_futures=True)
        arena.delete_topics(topics)
        if time.monotonic() > ends_at:
            return


def _play(arena: Arena, scenario: Scenario, stage: Staged, ends_at: float) -> Played | Wedged | str:
    if time.monotonic() > ends_at:
        return ""
    try:
        played = play(arena, scenario, stage)
    except CheckpointFormatError as error:
        if any(incident.copy.startswith("in place") for incident in scenario.incidents):
            return Wedged(scenario.seed, str(error))
        return f"seed {scenario.seed}: {traceback.format_exc()}"
    except Exception:  # noqa: BLE001 - reported, and the run fails
        return f"seed {scenario.seed}: {traceback.format_exc()}"
    if not played.violations:
        shutil.rmtree(played.file.parent, ignore_errors=True)
    return played


def _features(transaction_version: int | None) -> dict[str, int] | None:
    return None if transaction_version is None else {"transaction.version": transaction_version}


@contextmanager
def _engine(arguments: argparse.Namespace, where: Where) -> Iterator[Staged]:
    if arguments.engine == "loop":
        yield Stage if arguments.source == SOURCES[0] else ArrowStage
        return
    from tests.chaos.spark_engine import SparkStage
    from tests.chaos.spark_hosts import Hosts

    with Hosts(arguments.jobs, where) if arguments.attached else nullcontext() as hosts:
        yield partial(SparkStage, source=arguments.source, hosts=hosts, standbys=arguments.standbys)


def _named(arguments: argparse.Namespace) -> str:
    """The engine with what it was told that is not usual."""
    said = [arguments.engine]
    if arguments.source != SOURCES[0]:
        said.append(f"source {arguments.source}")
    if arguments.checkpoint != PLACES[0]:
        said.append(f"checkpoint on {arguments.checkpoint}")
    if arguments.race:
        said.append("racing")
    if arguments.standbys:
        said.append("rivals stand by")
    if arguments.attached:
        said.append("drivers attached to JVMs that outlive them")
    return ", ".join(said)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fault", default="", metavar="TEXT", help="only histories with a fault of such a name"
    )
    parser.add_argument("--only", type=int, help="play just the history of this seed")
    parser.add_argument(
        "--recovery-times", type=int, metavar="N", help="one history that kills N drivers"
    )
    parser.add_argument("--engine", choices=("loop", "spark"), default="loop")
    parser.add_argument(
        "--source",
        choices=SOURCES,
        default=SOURCES[0],
        help="what reads the input: Spark's Kafka source, or ArrowKafkaSource",
    )
    parser.add_argument(
        "--checkpoint",
        choices=PLACES,
        default=PLACES[0],
        help="where checkpoints are (engine spark, with --race): a disk, S3 (moto) or HDFS",
    )
    parser.add_argument(
        "--race",
        action="store_true",
        help="every driver has a rival from the start, and kills are all that strikes",
    )
    parser.add_argument(
        "--standbys",
        action="store_true",
        help="the rival of each driver stands by behind it (engine spark, with --race)",
    )
    parser.add_argument(
        "--attached",
        action="store_true",
        help="drivers share two JVMs that outlive them (engine spark): faster",
    )
    parser.add_argument(
        "--control", default="", metavar="RULE", help="break this rule: all must be violated"
    )
    parser.add_argument(
        "--outputs",
        type=_outputs,
        default=ALONE,
        metavar="KINDS",
        help=f"of {','.join(KINDS)}, kafka first: all in one decision (not with --race)",
    )
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2))
    parser.add_argument("--jobs", type=int, default=2, help="histories at a time")
    parser.add_argument("--minutes", type=float, default=600, help="start none after this")
    arguments = parser.parse_args()
    if arguments.outputs != ALONE and arguments.race:
        parser.error("--race is played to Kafka alone")
    if arguments.engine != "spark" and (arguments.checkpoint != PLACES[0] or arguments.attached):
        parser.error("--checkpoint and --attached are for the engine spark")
    if arguments.standbys and (arguments.engine != "spark" or not arguments.race):
        parser.error("--standbys is for the engine spark, with --race")
    if arguments.checkpoint != PLACES[0] and not arguments.race:
        parser.error("--checkpoint needs --race: other faults copy a folder on a disk")
    return arguments


def _outputs(text: str) -> tuple[str, ...]:
    """Kafka, and whatever else: what a history is judged by begins with the topic."""
    given = tuple(text.split(","))
    if given[0] != KINDS[0] or len(set(given)) != len(given) or not {*given} <= {*KINDS}:
        raise argparse.ArgumentTypeError(f"{text}: expected kafka, and any of {KINDS[1:]}")
    return given


if __name__ == "__main__":
    sys.exit(main())
