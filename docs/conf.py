"""The documentation site: ``make docs`` builds it into ``site/``, and a warning is an error."""

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import floodplain

DOCS = Path(__file__).parent

project = "Floodplain"
author = "the Floodplain authors"
copyright = author  # noqa: A001 — as Sphinx calls it
release = version = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["results", "reliability", "plots"]

myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Floodplain {release}"
html_theme_options = {"navigation_with_keys": True}

_SECTION = re.compile(r"^## (?P<title>.+)\n(?P<body>(?:(?!^## ).*\n)*)", re.MULTILINE)
_NAME = re.compile(r"^- `(\w+)`:", re.MULTILINE)


def setup(app: Any) -> None:
    app.connect("source-read", _fill_reference)


def _fill_reference(app: Any, docname: str, source: list[str]) -> None:  # noqa: ARG001
    """The reference has the names of the page that lists them, each as its docstrings describe it."""
    if docname == "reference":
        sections = _SECTION.finditer((DOCS / "api.md").read_text())
        source[0] += "".join(_section(match["title"], _NAME.findall(match["body"])) for match in sections)


def _section(title: str, names: list[str]) -> str:
    entries = "\n".join(_directive(name, getattr(floodplain, name)) for name in names)
    return f"\n## {title}\n\n```{{eval-rst}}\n.. currentmodule:: floodplain\n\n{entries}```\n"


def _directive(name: str, member: object) -> str:
    if not inspect.isclass(member):
        return f".. autofunction:: {name}\n"
    if issubclass(member, BaseException):
        return f".. autoexception:: {name}\n"
    return f".. autoclass:: {name}\n   :members:\n"
