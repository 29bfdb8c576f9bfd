"""``python -m tests.proof``: every kind at every place, what else is long, and what became of it.

Exit status 1 where anything failed; the table then says what.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.proof.table import beside, cases, page
from tests.support.written import run_and_write

SUITE = "tests/integration/kinds/test_kinds.py"
BESIDE = (
    "tests/chaos/test_arrow_source.py",
    "tests/chaos/test_controls.py",
    "tests/chaos/test_placed.py",
    "tests/chaos/test_several.py",
    "tests/integration/airflow/test_adoption.py",
    "tests/integration/airflow/test_asking.py",
    "tests/integration/airflow/test_drill.py",
    "tests/integration/airflow/test_housekeeping.py",
    "tests/integration/airflow/test_lineage.py",
    "tests/integration/airflow/test_outages.py",
    "tests/integration/airflow/test_settled_events.py",
    "tests/integration/airflow/test_streaming.py",
    "tests/integration/airflow/test_upgrading.py",
    "tests/integration/airflow/test_watchdog.py",
    "tests/integration/airflow/test_watching.py",
    "tests/integration/brokers/test_profiles.py",
    "tests/integration/commands/test_drivers.py",
    "tests/integration/commands/test_repartition.py",
    "tests/integration/connect/test_examples.py",
    "tests/integration/connect/test_five_outputs.py",
    "tests/integration/connect/test_killed.py",
    "tests/integration/cuts/test_books.py",
    "tests/integration/files/test_manifest.py",
    "tests/integration/files/test_partitioned_crashes.py",
    "tests/integration/guarantees/test_guarantees.py",
    "tests/integration/hazards/test_broker_clock.py",
    "tests/integration/hazards/test_disasters.py",
    "tests/integration/hazards/test_doctor.py",
    "tests/integration/hazards/test_input_past_retention.py",
    "tests/integration/hazards/test_joins.py",
    "tests/integration/hazards/test_no_dead_end.py",
    "tests/integration/hazards/test_power_cut.py",
    "tests/integration/hazards/test_standby.py",
    "tests/integration/hazards/test_three_brokers.py",
    "tests/integration/hazards/test_transaction_versions.py",
    "tests/integration/hazards/test_two_drivers.py",
    "tests/integration/hazards/test_without_airflow.py",
    "tests/integration/hazards/test_world_as_it_is.py",
    "tests/integration/kafka/test_left_out_markers.py",
    "tests/integration/kafka/test_moving_leaders.py",
    "tests/integration/kafka/test_outcomes.py",
    "tests/integration/kafka/test_throttling.py",
    "tests/integration/kafka/test_writer.py",
    "tests/integration/kept/test_hbase.py",
    "tests/integration/kinds/test_at_once.py",
    "tests/integration/kinds/test_kept_rows.py",
    "tests/integration/kinds/test_of_a_kind.py",
    "tests/integration/lake/test_rest_catalog.py",
    "tests/integration/lake/test_upserts_beside_others.py",
    "tests/integration/local/test_broker.py",
    "tests/integration/local/test_broker_command.py",
    "tests/integration/local/test_try.py",
    "tests/integration/offsets/test_go_on_from_the_group.py",
    "tests/integration/offsets/test_never_ahead.py",
    "tests/integration/offsets/test_two_clusters.py",
    "tests/integration/policy/test_batch_timeout.py",
    "tests/integration/policy/test_running_stream.py",
    "tests/integration/recorded/test_format_1.py",
    "tests/integration/recovery/test_recovery_killed.py",
    "tests/integration/rehearsal/test_command.py",
    "tests/integration/rehearsal/test_rehearsal.py",
    "tests/integration/several/test_postings.py",
    "tests/integration/sinks/test_crashes.py",
    "tests/integration/sinks/test_other_widths.py",
    "tests/integration/sinks/test_replays.py",
    "tests/integration/sinks/test_slice.py",
    "tests/integration/sources/test_arrow.py",
    "tests/integration/sources/test_crashes.py",
    "tests/integration/spark_apps/test_outputs_by_configuration.py",
    "tests/integration/test_demo.py",
)
"""Files that have a test marked ``proof``: too long for ``make test``."""


def whole(report: Path, commit: str) -> str:
    """The page of a report."""
    return page(cases(report), beside(report), commit)


if __name__ == "__main__":
    tests = (SUITE, *BESIDE)
    sys.exit(run_and_write(Path(__file__).parent, __doc__, tests, whole, jobs=2))
