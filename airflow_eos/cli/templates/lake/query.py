"""Clicks and users of each day in the table of `my_pipeline`: `python query.py`.

It sees what every reader sees: the batches that were delivered, each of them whole. The environment
says how S3 is reached (AWS_ENDPOINT, AWS_ACCESS_KEY_ID, …).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

QUERY = """
SELECT day, count(*) AS clicks, count(DISTINCT "user") AS users, count(DISTINCT id) AS ids
FROM clicks GROUP BY day ORDER BY day
"""


def main() -> None:
    """Print a line for each day; the table is that of `outputs.json`, unless one is named."""
    (output,) = json.loads((Path(__file__).parent / "outputs.json").read_text(encoding="utf-8"))
    table = DeltaTable(sys.argv[1] if len(sys.argv) > 1 else output["table_uri"])
    found = pa.table(QueryBuilder().register("clicks", table).execute(QUERY))
    for row in (found.column_names, *(each.values() for each in found.to_pylist())):
        sys.stdout.write("\t".join(map(str, row)) + "\n")


if __name__ == "__main__":
    main()
