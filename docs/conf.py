"""The site: `make docs` builds it from the pages beside this file, into .build/site."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/airflow-eos/airflow-eos"

# The reference imports Airflow, which writes its configuration where it is first imported.
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".build" / "airflow"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
sys.path.insert(0, str(ROOT))

project = "airflow_eos"
author = "the authors of airflow_eos"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

exclude_patterns = ["protocol.md"]  # the contract, for whoever changes the code

html_theme = "furo"
html_title = "airflow_eos"
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "source_repository": HOME,
    "source_branch": "main",
    "source_directory": "docs/",
}

# As GitHub names them, so that a link holds in both places.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else a field with a docstring is described twice

LINK = re.compile(r"(?<=\]\()(\.\.?/[^)\s#]+)|(?<=\]: )(\.\.?/[^)\s#]+)")


def point_out(page: str, text: str) -> str:
    """Links to what is no part of the site (sources, tests) lead to the repository."""
    folder = posixpath.dirname(f"docs/{page}")

    def address(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[0]))
        if path.startswith("docs/") and path.removeprefix("docs/") not in exclude_patterns:
            return link[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{HOME}/{kind}/main/{path}"

    return LINK.sub(address, text)


def _point_out(_app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = point_out(page, source[0])


def setup(app: Sphinx) -> None:
    """Connect what Sphinx calls for each page."""
    app.connect("source-read", _point_out)
