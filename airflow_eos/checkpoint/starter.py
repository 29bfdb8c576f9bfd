"""Who started a driver: the identity by which a later try finds its app again, on every cluster.

It travels in the driver's environment and stands in its heartbeat. The text form holds no quotes:
YARN writes a container's environment into a shell script and does not escape them.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from urllib.parse import parse_qs, urlencode

import msgspec

from airflow_eos.errors import ConfigurationError
from airflow_eos.protocol.codec import one_line

STARTED_BY = "EOS_STARTED_BY"
"""The environment variable that tells a driver."""
_DRAWN = re.compile(r"[0-9a-f]{44}", re.ASCII)
_MARK = 12


class StartedBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One start of an app by one task of Airflow.

    ``submission`` is drawn anew for each start: what one ``spark-submit`` has begun, and nothing
    else, says it. It begins with a mark of the task, so that a checkpoint cannot name another
    task's start as ours: cluster managers know a driver by it. ``map_index`` is -1 where the task
    is not mapped.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int
    submission: str

    def is_same_task(self, other: StartedBy | None) -> bool:
        """Whether a try of the same task of the same run started it."""
        if other is None or self.task != other.task:
            return False
        drawn = _DRAWN.fullmatch(other.submission) is not None
        return not drawn or other.submission.startswith(self._mark)

    def begun_anew(self) -> StartedBy:
        """The next start of this task."""
        submission = f"{self._mark}{uuid.uuid4().hex}"
        return msgspec.structs.replace(self, submission=submission)

    @property
    def _mark(self) -> str:
        return hashlib.sha256(repr(self.task).encode()).hexdigest()[:_MARK]

    @property
    def task(self) -> tuple[str, str, str, int]:
        """The task, without saying which start it was."""
        return self.dag_id, self.task_id, self.run_id, self.map_index

    def __str__(self) -> str:
        """For people."""
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return one_line(f"task {self.dag_id}.{self.task_id}{mapped} of run {self.run_id}")

    def as_text(self) -> str:
        """What the environment variable says."""
        return urlencode({**msgspec.structs.asdict(self), "map_index": str(self.map_index)})

    @classmethod
    def of_text(cls, text: str | None) -> StartedBy | None:
        """What the environment variable says; None where nobody has set it: started by hand.

        Raises:
            ConfigurationError: it cannot be read.
        """
        if not text:
            return None
        said = parse_qs(text, keep_blank_values=True)
        fields = {name: values[-1] for name, values in said.items()}
        try:
            return msgspec.convert(fields, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"{STARTED_BY}={text!r} cannot be read ({error}). SparkStreamingOperator sets it: "
                "leave it away where an app is started by hand."
            ) from error
