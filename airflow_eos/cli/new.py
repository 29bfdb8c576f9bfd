"""``airflow-eos new`` and ``try``: write a new pipeline; kill one, recover it, count its rows."""

from __future__ import annotations

import enum
import json
import keyword
import re
import sysconfig
import tempfile
import unicodedata
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from airflow_eos.cli.options import AsJson, word
from airflow_eos.cli.project import FILE
from airflow_eos.errors import ConfigurationError

_TEMPLATES = Path(__file__).parent / "templates"
_CALLED = "my_pipeline"
"""The pipeline's name in the templates, where no column and no field is called so."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}", re.ASCII)


class Kind(enum.StrEnum):
    """The shape of a pipeline."""

    map = "map"
    windows = "windows"
    upsert = "upsert"
    lake = "lake"


def new(
    name: Annotated[str, typer.Argument(help="Name of the pipeline, its topic and its folder.")],
    kind: Annotated[
        str,
        word(
            "--kind",
            Kind,
            help="map: each row by itself. windows: counts in windows, to two outputs. upsert: one "
            "value for each key. lake: into a partitioned table on S3.",
        ),
    ] = Kind.map,
    into: Annotated[Path, typer.Option(help="Where to make the folder.")] = Path(),
) -> None:
    """Write an app, its DAGs and a README into a new folder; they run as they are."""
    folder = into / name
    for path in make_project(name, Kind(kind), folder):
        typer.echo(path)
    typer.echo(f"Next: airflow-eos try {folder}, then read {folder}/README.md.")


def make_project(name: str, kind: Kind, folder: Path) -> list[Path]:
    """Write the files of a new pipeline; return their paths.

    Raises:
        ConfigurationError: the name does not fit a Python module and a topic, or the folder is
            there already, or cannot be written.
    """
    if _NAME.fullmatch(name) is None:
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        fits = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")
        example = fits if _NAME.fullmatch(fits) else "clicks_eu"
        raise ConfigurationError(
            f"name {name!r}: expected a letter, then up to 59 letters, digits or underscores, all "
            f"lower case, as for a Python module: {example}."
        )
    if keyword.iskeyword(name):
        raise ConfigurationError(f"{name!r} is a word of Python's own: choose another name.")
    if _is_module(name):
        raise ConfigurationError(
            f"{name!r} is the name of a Python module that is installed here, and the app would be "
            "imported in its place: choose another name."
        )
    if folder.exists():
        raise ConfigurationError(
            f"{folder} is there already, and nothing of it was changed: choose another name, or "
            "another folder with --into."
        )
    written = {
        f"spark_apps/{name}.py": _template(f"{kind}/app.py", name),
        f"dags/{name}.py": _template("dag.py", name),
        "README.md": _template("README.md", name),
        FILE: _template(FILE, name),
        "rows.tsv": "".join(f"{key}\t{value}\n" for key, value in sample_rows()),
    }
    if kind in {Kind.windows, Kind.lake}:
        written |= {"outputs.json": _template(f"{kind}/outputs.json", name)}
        written[f"dags/{name}.py"] = _with_outputs(written[f"dags/{name}.py"])
    if kind is Kind.windows:
        written[FILE] = written[FILE].replace(f'"{name}.out"', f'["{name}.out", "{name}.busy"]')
        written["README.md"] = _replaced(written["README.md"], _two_topics(name))
    if kind is Kind.lake:
        written |= {"query.py": _template("lake/query.py", name)}
        written[FILE] = _replaced(written[FILE], {f'output_topic = "{name}.out"\n': ""})
        written["README.md"] = _replaced(written["README.md"], _a_table(name))
        rows = sample_rows(timedelta(minutes=10))  # a week
        written["rows.tsv"] = "".join(f"{key}\t{value}\n" for key, value in rows)
    try:
        for path, text in written.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written: {error}. Choose another folder with --into."
        ) from error
    return [folder / path for path in written]


def _is_module(name: str) -> bool:
    """Tell whether an import would find a module of Python or an installed one, not a folder."""
    found = find_spec(name)
    if found is None or found.origin is not None:
        return found is not None
    # A package without __init__.py, such as google: the app would hide google.protobuf.
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(str(Path(at).parent) in installed for at in found.submodule_search_locations or ())


def sample_rows(every: timedelta = timedelta(milliseconds=100)) -> list[tuple[str, str]]:
    """Return 1,000 clicks of seven users on five pages: key and value."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        (
            f"user-{n % 7}",
            json.dumps(
                {
                    "id": f"c-{n}",
                    "user": f"user-{n % 7}",
                    "page": f"/{'abcde'[n * n % 5]}",
                    "at": (began + n * every).isoformat(),
                }
            ),
        )
        for n in range(1_000)
    ]


def _template(path: str, name: str) -> str:
    return (_TEMPLATES / path).read_text(encoding="utf-8").replace(_CALLED, name)


def _with_outputs(dag: str) -> str:
    """Return the DAG with an ``outputs`` argument for the app in the place of one topic."""
    return dag.replace("from pathlib", "import json\nfrom pathlib").replace(
        '    kafka_config_id="kafka_default",\n',
        '    outputs=json.loads((HERE / "outputs.json").read_text(encoding="utf-8")),\n'
        '    kafka_config_id="kafka_default",\n',
    )


def _replaced(text: str, said: Mapping[str, str]) -> str:
    for old, new in said.items():
        text = text.replace(old, new)
    return text


def _two_topics(name: str) -> dict[str, str]:
    """Return what the README says otherwise where rows go to two topics."""
    return {
        f"topic {name} {name}.out\n": f"topic {name} {name}.out {name}.busy\n",
        f"checkpoints/{name} --trigger": f"checkpoints/{name} --outputs outputs.json --trigger",
        "| `rows.tsv`": "| `outputs.json` | all windows to one topic, the busy ones to a second |\n"
        "| `rows.tsv`",
    }


def _a_table(name: str) -> dict[str, str]:
    """Return what the README says otherwise where rows go into a table on S3."""
    return {
        f"to topic `{name}.out`.": "into a table on S3, a partition for each day.",
        "| `rows.tsv`": "| `outputs.json` | where the table is, its columns and its partitions |\n"
        "| `query.py` | a query that reads it |\n| `rows.tsv`",
        "spark,cli]'`": "spark,cli,delta]' 'moto[s3,server]'`",
        f"broker topic {name} {name}.out\n": f"broker topic {name}\n"
        "moto_server -H 127.0.0.1 -p 5000 &      # an S3 on this machine, empty at each start\n"
        "export AWS_ENDPOINT=http://127.0.0.1:5000 AWS_ALLOW_HTTP=true AWS_REGION=us-east-1\n"
        "export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local\n"
        "curl -X PUT $AWS_ENDPOINT/lake\n",
        f"checkpoints/{name} --trigger": f"checkpoints/{name} --outputs outputs.json --trigger",
        f"airflow-eos broker read {name}.out\n": "python query.py\n",
        "the checkpoint is the same.": "the checkpoint is the same. The terminal has the `AWS_` "
        "variables of above.",
        "## Run it in Airflow": "On another S3: name its bucket in `outputs.json`, and give keys "
        "or a role by AWS's own variables.\n\n## Run it in Airflow",
    }


DIFFERS = 1


def try_out(
    project: Annotated[
        Path | None,
        typer.Argument(
            help="A folder made by `airflow-eos new`; if left out: this one if it is such a one, "
            "else one of our own."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Kill a streaming app in the middle of a batch, recover it, let it go on, count every row.

    Starts a Kafka broker of its own and needs Java 17 and pyspark; leaves nothing behind. Exit
    status: 0 every row once, 1 rows lost or twice, 2 an error.
    """
    from rich.console import Console

    from airflow_eos.cli.trial import app_of, play, read_project
    from airflow_eos.local import EmbeddedKafka, broker_jars, spark_jars
    from airflow_eos.local.s3 import local_s3

    console = Console(quiet=as_json)
    if project is None and app_of(Path()).is_file():
        project = Path()
    with tempfile.TemporaryDirectory(prefix="airflow-eos-try-") as folder:
        if project is None:
            project = Path(folder) / "clicks"
            make_project("clicks", Kind.map, project)
        found = read_project(project)
        broker_jars()  # in this process, which shows the progress of a first download
        spark_jars()
        with EmbeddedKafka() as kafka, ExitStack() as more:
            s3 = more.enter_context(local_s3()) if found.tables else {}
            console.print(f"A Kafka broker is up at {kafka.bootstrap_servers}.")
            counted = play(found, Path(folder), kafka.bootstrap_servers, console, s3)
    if as_json:
        typer.echo(msgspec.json.encode(counted).decode())
    if counted.lost or counted.duplicated:
        raise typer.Exit(DIFFERS)
