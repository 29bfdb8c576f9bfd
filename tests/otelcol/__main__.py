"""``python -m tests.otelcol``: a driver's figures before a real OpenTelemetry Collector.

Built from the Go modules of its project by ``go build``: minutes the first time: no test does it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from airflow_eos.core.delivery.observed import observer_of
from airflow_eos.core.tally import RETRY_COUNTS
from airflow_eos.local.broker import free_ports
from airflow_eos.ops.figures import METRICS
from tests.support.otlp import process_that_sends_to
from tests.unit.ops.figures.scene import Scene
from tests.unit.ops.figures.test_figures import left_open, lost_and_replayed

HERE = Path(__file__).parent
BATCHES = 5
CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed, use_internal_logger: false}}}}
service:
  pipelines:
    metrics: {{receivers: [otlp], exporters: [debug]}}
    traces: {{receivers: [otlp], exporters: [debug]}}
"""


def main() -> int:
    """0 where the collector shows every metric, and a trace for each batch."""
    with tempfile.TemporaryDirectory() as folder:
        program, config, shown = (Path(folder, name) for name in ("otelcol", "config", "shown"))
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=HERE, check=True)
        (port,) = free_ports(1)
        config.write_text(CONFIG.format(port=port))
        address = f"http://127.0.0.1:{port}"
        with shown.open("wb") as out:
            collector = subprocess.Popen([program, "--config", f"file:{config}"], stdout=out)
            try:
                wait_for(f"{address}/v1/metrics")
                send(address)
            finally:
                collector.terminate()
                collector.wait(120)
        text = shown.read_text(encoding="utf-8", errors="replace")
    metrics = set(re.findall(r"-> Name: (eos\.\S+)", text))
    spans = re.findall(r"^ +Name +: (\w+)", text, re.MULTILINE)
    missing = {each.name for each in METRICS} - metrics
    sys.stdout.write(
        f"{len(metrics)} metrics, {spans.count('batch')} traces, {len(spans)} spans; missing: "
        f"{', '.join(sorted(missing)) or 'none'}\n"
    )
    return int(bool(missing) or spans.count("batch") != BATCHES)


def wait_for(url: str) -> None:
    """Until the collector takes an empty request."""
    request = Request(url, b"{}", {"Content-Type": "application/json"})
    for _ in range(100):
        try:
            urlopen(request).close()
        except URLError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no collector at {url}")


def send(address: str) -> None:
    """Two batches, one that is lost and replayed, and one that is left open."""
    with process_that_sends_to(address):
        RETRY_COUNTS["kafka"] += 1
        observer = observer_of("ck")
        scene = Scene(observer)
        scene.run(0)
        scene.run(1)
        lost_and_replayed(scene, observer, 2)
        left_open(scene, 3)


if __name__ == "__main__":
    sys.exit(main())
