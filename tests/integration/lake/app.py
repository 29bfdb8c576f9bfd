"""The test app, delivering into a table: ``EOS_TEST_LAKE`` says of which kind."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.lake.kinds import KINDS
from tests.support import app

KIND = "EOS_TEST_LAKE"


def sink_of(kind: str, folder: str) -> Any:
    """A sink into the table ``folder``."""
    return KINDS[kind].sink(Path(folder))


if __name__ == "__main__":
    vars(app)["FileSink"] = partial(sink_of, os.environ[KIND])
    sys.exit(app.main())
