"""The documentation site: ``make docs`` builds it into ``site/``, and a warning is an error."""

import tomllib
from pathlib import Path

project = "Floodplain"
author = "the Floodplain authors"
copyright = author  # noqa: A001 — as Sphinx calls it
release = version = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["results", "reliability", "plots"]
suppress_warnings = ["misc.highlighting_failure"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Floodplain {release}"
html_theme_options = {"navigation_with_keys": True}
