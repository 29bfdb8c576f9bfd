"""A real Airflow API server on a database of its own, with people who may more and less."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from airflow_eos.local.broker import free_ports
from tests.support.pipeline import wait_until

ROOT = Path(__file__).parents[2]
PEOPLE = {"ann": "admin", "vic": "viewer", "ned": ""}
"""Who may do everything, who may look, and who is known and may do nothing."""

DAGS = """
from airflow.sdk import dag
from airflow_eos.operators import RecoverTransactionsOperator, SparkStreamingOperator

@dag(dag_id="orders_etl", schedule=None, max_active_runs=1, is_paused_upon_creation=False)
def etl():
    SparkStreamingOperator(task_id="run", application="app.py", checkpoint_location={checkpoint!r})

@dag(dag_id="orders_recovery", schedule=None, max_active_runs=1, is_paused_upon_creation=False)
def recovery():
    RecoverTransactionsOperator(task_id="execute", checkpoint_location={checkpoint!r})

etl()
recovery()
"""
TEMPLATE = """
@dag(dag_id="by_template", schedule=None)
def template():
    SparkStreamingOperator(
        task_id="run", application="app.py", checkpoint_location="{{ var.value.place }}"
    )

template()
"""
OTHERS = """
def other(name, checkpoint):
    @dag(dag_id=name, schedule=None)
    def etl():
        SparkStreamingOperator(task_id="run", application="app.py", checkpoint_location=checkpoint)
    return etl()

for name, checkpoint in {others!r}.items():
    globals()[name] = other(name, checkpoint)
"""


@dataclass(frozen=True)
class AirflowServer:
    """One that runs."""

    url: str
    home: Path
    passwords: Mapping[str, str]
    secret: str = field(repr=False)
    """What it signs with."""

    def token(self, who: str) -> str:
        """What a client of that person sends in its header, and a browser in its cookie."""
        told = {"username": who, "password": self.passwords[who]}
        answer = httpx.post(f"{self.url}/auth/token", json=told, timeout=60)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def client(self, who: str | None = None) -> httpx.Client:
        """A client of that person, as his browser is: by its cookie."""
        cookies = {"_token": self.token(who)} if who else None
        return httpx.Client(base_url=self.url, cookies=cookies, timeout=60)

    def sql(self, query: str) -> list[Any]:
        """Rows of its database."""
        import sqlite3

        with sqlite3.connect(self.home / "airflow.db") as database:
            return database.execute(query).fetchall()


@contextmanager
def airflow_server(
    folder: Path, checkpoint: str, others: Mapping[str, str] | None = None, **more: str
) -> Iterator[AirflowServer]:
    """Serve the DAGs above, of a pipeline at ``checkpoint``; ``more`` is environment.

    With ``others`` (name → checkpoint) those stand beside it, in the place of the template.
    """
    home, dags = folder / "airflow", folder / "dags"
    home.mkdir()
    dags.mkdir()
    beside = TEMPLATE if others is None else OTHERS.format(others=dict(others))
    (dags / "pipelines.py").write_text(DAGS.format(checkpoint=checkpoint) + beside)
    passwords = {who: secrets.token_hex(8) for who in PEOPLE}
    (home / "passwords.json").write_text(json.dumps(passwords))
    [port], secret = free_ports(1), secrets.token_hex(16)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW__")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{w}:{r}" for w, r in PEOPLE.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "PYTHONPATH": str(ROOT),
        **more,
    }
    airflow = [str(Path(sys.executable).with_name("airflow"))]
    for arguments in (["db", "migrate"], ["dags", "reserialize"]):
        done = subprocess.run(
            airflow + arguments, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr
    log = (home / "api-server.log").open("w")
    process = subprocess.Popen(
        [*airflow, "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(process, url), timeout=120, every=0.3, what="the API server")
        yield AirflowServer(url, home, passwords, secret)
    finally:
        process.terminate()
        try:
            process.wait(120)
        finally:
            process.kill()
            process.wait()
            log.close()


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None, "the API server has ended"
    try:
        return httpx.get(f"{url}/api/v2/version", timeout=60).is_success
    except httpx.TransportError:
        return False
