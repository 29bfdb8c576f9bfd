"""What happens in one history: a value, made by hand (the tests) or from a seed (``chance``)."""

from __future__ import annotations

import msgspec

DRIVER_PLACES = ("sealed", "before-prepare", "prepared", "decided", "settled-some", "settled")
SPARK_PLACES = (
    "between",
    "offsets-looked",
    "offsets-renaming",
    "offsets-purged",
    "planned",
    "returned",
    "commits-looked",
    "commits-renaming",
)
"""Of Spark's loop: after a batch; between the first look and the second of ``offsets/N``, and
between that and the rename; in the middle of a purge; planned; before ``commits/N``, and in it."""

WORKER_PLACES = ("task-wrote", "task-prepared")
RECOVERY_PLACES = ("recovery-listed", "recovery-sealed", "recovery-acted-first")
SHORT_S = 1.2
LONG_S = 30.0
RETAINED = 2
"""``spark.sql.streaming.minBatchesToRetain`` of a history that purges; Spark's default is 100."""

RACING = "racing"
"""Two drivers are started at once, and what strikes strikes whoever comes to it."""

ORDER_SURVIVES_REPLAY = True
"""Whether a replay under another parallelism must keep the order of a key's rows."""

EXPIRY_S = 3.0
"""After this the broker forgets an id that nobody uses: in these tests, not a week."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A driver is started, something befalls it, and nobody of it is left afterwards.

    Attributes:
        fault: its kind, for the summary.
        failpoints: as ``EOS_FAILPOINTS`` of the driver and its workers.
        signal: KILL, TERM or STOP, sent ``at_s`` after the start.
        group: whether the signal hits driver and workers, or the driver alone.
        rival: a second driver: "at-start", or "when-stopped" and then the first is woken; or
            "racing": at the start, and either of the two may come to the failpoint, or be killed.
        apart_s: the second of those that race is started so much later.
        behind: the second of those that race stands by first; then the first is killed ("KILL"),
            stands still until the incident is over ("STOP"), or hands over ("hand over"), and the
            failpoints are of the second alone.
        rule: what the proxy does: (api, nth, action).
        broker: the broker is killed and started again ``at_s`` after the start.
        rival_rows: so many times as many rows as the first takes into a batch: another end.
        past: a rival commits so many batches before the first is woken, and so many follow a
            copy before it is restored.
        gap_s: how long Spark's look and its rename are apart.
        copy: the checkpoint is copied where the driver stands still, and the driver goes on. The
            copy is then "restored" when the driver is dead, or put "in place" while it stands
            still or "in place, live"; another driver is started on it.
        other: a second pipeline with the same prefix and another checkpoint is started, with
            "another topic" or "the same topic", while the first runs or, "left alone", is dead.
        recoveries: so many processes recover afterwards, at once.
        beside: they do so while the driver is alive.
        recovery_failpoints: of the first of these.
        executor: a worker of the driver is killed ``at_s`` after the start: with Spark, a JVM.
        left_s: how long everything is left alone afterwards.
        database_s: PostgreSQL is killed once the rest has befallen it, and away for so long.
        role: a setting that PostgreSQL's role imposes on all sessions that begin meanwhile.
        altered: what is done to the table of the history, ``{}``, once the rest has befallen it.
        input_gone: what was promised of the input, and is settled, passes its retention.
        retention: and then all rows that readers can have are deleted from the output.
        emptied: and what of Spark's files a power cut leaves empty: the newest entry of a log, or
            ``metadata``.
        gone: it is not there at all: somebody has removed it.
        timeout_s: transaction timeout of this driver.
        width: parallelism after a shuffle.
    """

    fault: str
    failpoints: str = ""
    signal: str = ""
    at_s: float = 0.5
    group: bool = True
    rival: str = ""
    rival_rows: int = 1
    apart_s: float = 0.0
    behind: str = ""
    past: int = 0
    gap_s: float = 0.0
    copy: str = ""
    other: str = ""
    rule: tuple[str, int, str] | None = None
    broker: bool = False
    recoveries: int = 0
    recovery_failpoints: str = ""
    beside: bool = False
    executor: bool = False
    database_s: float | None = None
    role: str = ""
    altered: str = ""
    input_gone: bool = False
    retention: bool = False
    emptied: tuple[str, ...] = ()
    gone: bool = False
    left_s: float = 0.0
    timeout_s: float = LONG_S
    width: int = 3
    feed: int = 60

    @property
    def lone(self) -> bool:
        """Nobody but one driver at a time could take an id: a promise ends by timeout only."""
        others = self.rival or self.copy or self.other
        return not (others or self.rule or self.broker or self.signal) and self.group


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One history: what the query does, and what befalls it.

    ``turns`` says for each start of a driver by how much task numbers are moved; else by chance.
    """

    seed: int
    kind: str = "map"
    partitions: int = 3
    keys: int = 11
    batch_rows: int = 20
    incidents: tuple[Incident, ...]
    retained: int = 100
    turns: tuple[int, ...] = ()
    control: str = ""
    isolation: str = "read_committed"
    outputs: tuple[str, ...] = ("kafka",)

    @property
    def proxied(self) -> bool:
        return any(incident.rule for incident in self.incidents)

    @property
    def ordered(self) -> bool:
        """Whether rows of a key must keep their order: not where a shuffle parts them."""
        as_it_was = len({incident.width for incident in self.incidents}) == 1
        if self.kind == "keyed":
            return as_it_was or ORDER_SURVIVES_REPLAY
        return self.kind in {"map", "count", "dealt"}

    @property
    def lone(self) -> bool:
        return all(incident.lone for incident in self.incidents)


def topics_of(scenario: Scenario) -> list[str]:
    """The topics that the history writes to."""
    name = name_of(scenario)
    others = any("another topic" in incident.other for incident in scenario.incidents)
    return [f"{name}-out", f"{name}-other"] if others else [f"{name}-out"]


def name_of(scenario: Scenario) -> str:
    return f"h{scenario.seed}" + (f"-{scenario.control}" if scenario.control else "")
