"""The rules by which an app is run, watched and stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from airflow_eos.core.arguments import Cancel
from airflow_eos.core.delivery.policy import RestartStrategy
from airflow_eos.ops.supervision.exit_status import Patience
from airflow_eos.ops.supervision.heartbeat_monitor import ClusterManager


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which an app is run, watched and stopped.

    Attributes:
        strategy: how often, and how far apart, the app is started again.
        patience: how long an app may be silent before it counts as ended.
        drain_timeout: how long a stopped app may take to end its batch before it is killed.
        cancel: what becomes of the app when its task is stopped.
        hand_over: return once the driver was seen to live, and let another process watch it.
        standby: where another driver lives, let the app stand by behind that driver.
        manager: the cluster manager the app is submitted to; no other is asked to end its driver.
    """

    strategy: RestartStrategy
    drain_timeout: timedelta
    patience: Patience = field(default_factory=lambda: Patience(60.0, 600.0))
    cancel: Cancel = "drain"
    hand_over: bool = False
    standby: bool = False
    manager: ClusterManager = field(default_factory=ClusterManager)
