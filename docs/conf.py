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
html_static_path = ["_static"]
html_css_files = ["site.css"]

_SECTION = re.compile(r"^## (?P<title>.+)\n(?P<body>(?:(?!^## ).*\n)*)", re.MULTILINE)
_NAME = re.compile(r"^- `(\w+)`:", re.MULTILINE)
_FOREIGN_BASES = "Generic, GroupedNames, SparkNames, Struct, tuple"
"""Base classes whose members the reference does not repeat."""
_CONSTRUCTED_BY_US = {
    *("Batch", "BatchContext", "Change", "Collected", "Compacted", "Context", "Epoch", "EpochContext", "EpochProgress", "Groups"),
    *("Lookup", "OpenContext", "Output", "Query", "RolledBack", "Row", "Snapshot", "Store", "Stream", "TableView", "Verdict"),
    *("WindowedStream", "Writer"),
}
"""Users get these from a call, so the reference shows no constructor."""
_INTERNAL = {
    "Stream": "sources, broadcasts, rule, changes, about, check_same_input",
    "PipelineKit": "start, foreach_batch_sink, schemas_of, through",
    "Batch": "elements, renew, keys_due, take_due, write",
    "EpochContext": "watermark_ms, late_ms",
    "Context": "watermark_ms, late_ms",
    "BatchContext": "watermark_ms, late_ms",
    "Aggregate": "described, with_arguments",
}
"""Class → members with docstrings that only the package itself uses."""


def setup(app: Any) -> None:
    app.connect("source-read", _fill_reference)
    app.connect("autodoc-process-signature", _hide_constructor)


def _hide_constructor(app: Any, what: str, name: str, *_: object) -> tuple[str, None] | None:  # noqa: ARG001
    return ("", None) if what == "class" and name.rpartition(".")[2] in _CONSTRUCTED_BY_US else None


def _fill_reference(app: Any, docname: str, source: list[str]) -> None:  # noqa: ARG001
    """The reference has the names of the page that lists them, each as its docstrings describe it."""
    if docname == "reference":
        sections = _SECTION.finditer((DOCS / "api.md").read_text())
        entries = "".join(_section(match["title"], _NAME.findall(match["body"])) for match in sections)
        source[0] = source[0].replace("<!-- entries -->", entries)


def _section(title: str, names: list[str]) -> str:
    entries = "\n".join(_directive(name, getattr(floodplain, name)) for name in names)
    return f"\n## {title}\n\n```{{eval-rst}}\n.. currentmodule:: floodplain\n\n{entries}```\n"


def _directive(name: str, member: object) -> str:
    if not inspect.isclass(member):
        return f".. autofunction:: {name}\n"
    if issubclass(member, BaseException):
        return f".. autoexception:: {name}\n"
    hidden = f"   :exclude-members: {_INTERNAL[name]}\n" if name in _INTERNAL else ""
    return f".. autoclass:: {name}\n   :members:\n   :inherited-members: {_FOREIGN_BASES}\n{hidden}"
