"""The waiting half of the deferrable sensors."""

from airflow_eos import hooks as _hooks  # noqa: F401 - an old Airflow ends here
