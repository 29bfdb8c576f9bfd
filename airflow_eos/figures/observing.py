"""Whether a pipeline is observed, and by whom: the environment says, when its query starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from airflow_eos.figures.events import Careful

if TYPE_CHECKING:
    from airflow_eos.figures.events import Observer

log = structlog.get_logger(__name__)

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "http/protobuf"


def observer_of(location: str, env: Mapping[str, str] | None = None) -> Observer | None:
    """Who observes the pipeline of that checkpoint; None where nobody asked, or nobody can.

    Args:
        location: of the checkpoint, without secrets: the attribute of every figure.
        env: OpenTelemetry's variables; those of the process by default.
    """
    signals = signals_wanted(os.environ if env is None else env)
    if not signals:
        return None
    try:
        from airflow_eos.figures.exporting import opened
        from airflow_eos.figures.recorder import Recorder

        return Careful(Recorder(location, *opened(signals)))
    except ImportError as error:
        log.warning("figures_not_sent", error=str(error), hint="install airflow-provider-eos[otel]")
    except Exception:  # whatever is wrong with a collector's address, the query starts
        log.exception("figures_not_sent")
    return None


def signals_wanted(env: Mapping[str, str]) -> frozenset[str]:
    """``metrics`` and ``traces``, as OpenTelemetry's own variables ask for them.

    Asked for is what has an address: the specification's default, localhost, would have every
    driver of a cluster look for a collector beside it.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    return frozenset(each for each in ("metrics", "traces") if _is_wanted(env, each.upper()))


def _is_wanted(env: Mapping[str, str], signal: str) -> bool:
    own = f"OTEL_EXPORTER_OTLP_{signal}"
    if not (env.get(_ENDPOINT) or env.get(f"{own}_ENDPOINT")):
        return False
    if env.get(f"OTEL_{signal}_EXPORTER", "otlp").strip() != "otlp":
        return False
    protocol = env.get(f"{own}_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        log.warning("figures_not_sent", signal=signal, protocol=protocol, expected=_PROTOCOL)
    return protocol == _PROTOCOL
