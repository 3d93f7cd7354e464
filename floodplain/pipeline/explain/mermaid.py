"""``explain`` as a Mermaid flowchart, which many web pages and editors render."""

from floodplain.pipeline.explain.graph import Arrow, Box, Graph

_SHAPES = {"input": ("([", "])"), "step": ("(", ")"), "operator": ("[", "]"), "sink": ("[(", ")]")}
_LINES = {"spark": "-->", "exchange": "==>", "staged": "-.->", "files": "-->", "broadcast": "-.->"}


def mermaid(graph: Graph) -> str:
    lines = ["flowchart TD", *(f"  {_box(number, box)}" for number, box in enumerate(graph.boxes))]
    lines += [f"  {_arrow(arrow)}" for arrow in graph.arrows]
    numbers = [f"n{number}" for number, box in enumerate(graph.boxes) if box.kind == "operator"]
    if numbers:
        lines += ["  classDef operator stroke-width:2px", f"  class {','.join(numbers)} operator"]
    return "\n".join([*lines, ""])


def _box(number: int, box: Box) -> str:
    opened, closed = _SHAPES[box.kind]
    text = "<br/>".join(map(_safe, (box.title, *box.all_lines)))
    return f'n{number}{opened}"{text}"{closed}'


def _arrow(arrow: Arrow) -> str:
    label = f'|"{_safe(arrow.label)}"|' if arrow.label else ""
    return f"n{arrow.start} {_LINES[arrow.flow]}{label} n{arrow.end}"


def _safe(text: str) -> str:
    """Escaped: quotes would end a label, and ``#`` begin an entity."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
