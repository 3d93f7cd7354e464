"""A pipeline explained as a Mermaid flowchart: text that many pages and editors draw."""

from floodplain.pipeline.explain.graph import Arrow, Box, Picture

_SHAPES = {"input": ("([", "])"), "step": ("(", ")"), "operator": ("[", "]"), "sink": ("[(", ")]")}
_LINES = {"spark": "-->", "exchange": "==>", "staged": "-.->", "files": "-->", "broadcast": "-.->"}


def mermaid(drawn: Picture) -> str:
    lines = ["flowchart TD", *(f"  {_box(number, box)}" for number, box in enumerate(drawn.boxes))]
    lines += [f"  {_arrow(arrow)}" for arrow in drawn.arrows]
    numbers = [f"n{number}" for number, box in enumerate(drawn.boxes) if box.kind == "operator"]
    if numbers:
        lines += ["  classDef operator stroke-width:2px", f"  class {','.join(numbers)} operator"]
    return "\n".join([*lines, ""])


def _box(number: int, box: Box) -> str:
    opened, closed = _SHAPES[box.kind]
    text = "<br/>".join(map(_safe, (box.title, *box.words)))
    return f'n{number}{opened}"{text}"{closed}'


def _arrow(arrow: Arrow) -> str:
    label = f'|"{_safe(arrow.label)}"|' if arrow.label else ""
    return f"n{arrow.start} {_LINES[arrow.flow]}{label} n{arrow.end}"


def _safe(text: str) -> str:
    """Quotes end a label, and ``#`` begins an entity."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
