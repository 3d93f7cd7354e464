"""``explain`` as text: the logical dataflow, then the physical plan."""

from typing import Literal, TypeAlias

from floodplain.errors import BadInput
from floodplain.pipeline.explain.graph import Arrow, Box, Graph, slots_text
from floodplain.pipeline.explain.mermaid import mermaid
from floodplain.pipeline.explain.svg import svg

Form: TypeAlias = Literal["text", "mermaid", "svg"]
_READS = {
    "exchange": "exchange: {label}",
    "staged": "no exchange: {label}, each task reads the rows of its slot",
    "broadcast": "collected and sent {label}",
    "spark": "in the same Spark job",
    "files": "reads staged files, whole",
}


def explained(graph: Graph, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
    """The graph rendered as ``"text"``, ``"mermaid"`` or ``"svg"``."""
    forms = {"text": text, "mermaid": mermaid, "svg": svg}
    if format not in forms:
        raise BadInput(f"explain(format={format!r}) is not known: use {', '.join(map(repr, forms))}")
    return forms[format](graph)


def text(graph: Graph) -> str:
    return "\n".join(["== Logical dataflow ==", *_logical(graph), "", "== Physical plan ==", *_physical(graph), ""])


def _logical(graph: Graph) -> list[str]:
    width = max((len(box.title) for box in graph.boxes), default=0)
    digits = len(str(len(graph.boxes))) + 2
    lines = []
    for number, box in enumerate(graph.boxes):
        parts = [f"from {', '.join(_from(arrow) for arrow in graph.into(number))}"] if graph.into(number) else []
        lines.append(
            f"{f'({number + 1})':{digits}} {box.kind:8} {box.title:{width}}  {' · '.join([*parts, *box.lines])}".rstrip()
        )
    return lines


def _from(arrow: Arrow) -> str:
    side = arrow.label.partition(":")[0] if arrow.flow in ("staged", "exchange") and ":" in arrow.label else ""
    side = arrow.label if arrow.flow == "files" and arrow.label else side
    return f"({arrow.start + 1})" + (f" {side}" if side else "")


def _physical(graph: Graph) -> list[str]:
    about = graph.about
    slots = "as many slots as tasks run at once, until rescaled"
    if about.slots is not None:
        each = [box.slots for box in graph.boxes if box.slots is not None]
        slots = f"{min(each)} to {max(each)} slots, by operator," if each else f"{about.slots} slots"
    groups = f" over {about.key_groups} key groups" if about.key_groups is not None else ""
    lines = [f"state at {about.location}"] if about.location is not None else []
    lines += [f"engine {about.engine}"] if about.engine else []
    lines += [f"input{' ' if tag else ''}{tag}, {way}" for tag, way in sorted(about.input_ways.items())]
    lines.append(f"each epoch: {slots}{groups} · {_exchanges(graph)}")
    jobs = 0
    for number, box in enumerate(graph.boxes):
        if box.kind == "operator":
            jobs += 1
            lines += _job(graph, number, box, jobs)
        elif box.kind == "sink" and not _made_by_operator(graph, number):
            jobs += 1
            start = graph.into(number)[0].start
            lines += [f"job {jobs}: {box.title}", f"  stages the rows of ({start + 1}) unchanged", *_upstream(graph, start)]
    sinks = [f"({number + 1}) {box.title}" for number, box in enumerate(graph.boxes) if box.kind == "sink"]
    lines.append("commit: one edit with state, input position, watermarks and staged output")
    return [*lines, f"publish: {', '.join(sinks)}"] if sinks else lines


def _exchanges(graph: Graph) -> str:
    """The number of shuffles in an epoch, without those within a user's ``transform``."""
    if graph.about.input_ways:
        return "no shuffle"
    all_of = [box.preaggregation for box in graph.boxes if box.preaggregation is not None]
    certain = sum(arrow.flow == "exchange" for arrow in graph.arrows)
    certain += sum(each.when == "on" and each.exchanges == 1 for each in all_of)
    more = sum(each.exchanges != 0 and (each.when == "auto" or (each.when == "on" and each.exchanges is None)) for each in all_of)
    up_to = f", up to {more} more for pre-aggregation" if more else ""
    return f"{certain} exchange{'' if certain == 1 else 's'}{up_to}"


def _job(graph: Graph, number: int, box: Box, job: int) -> list[str]:
    lines = [f"job {job}: {box.title}" + ("" if box.slots is None else f" in {slots_text(box.slots)}")]
    for arrow in graph.into(number):
        lines.append(f"  reads ({arrow.start + 1}), {_READS[arrow.flow].format(label=arrow.label.rpartition(': ')[2])}")
        lines += _upstream(graph, arrow.start)
    lines += [] if box.preaggregation is None else [f"  {box.preaggregation}"]
    lines += _tables(box)
    readers = [
        f"({arrow.end + 1})" + (f" {arrow.label}" if arrow.label else "") for arrow in graph.arrows if arrow.start == number
    ]
    return [*lines, f"  stages output for {', '.join(readers)}"] if readers else lines


def _tables(box: Box) -> list[str]:
    """The tables, or states, of a job, one line per kind."""
    kinds: dict[str, list[str]] = {}
    for line in box.physical:
        kind, _, name = line.partition(" ")
        kinds.setdefault(kind, []).append(name)
    return [f"  {kind if len(names) == 1 else kind + 's'} {', '.join(names)}" for kind, names in kinds.items()]


def _upstream(graph: Graph, number: int) -> list[str]:
    """The stateless steps that Spark runs in the same job, and where their rows come from."""
    box = graph.boxes[number]
    if box.kind != "step":
        return []
    lines = []
    for arrow in graph.into(number):
        lines.append(f"    ({number + 1}) {box.title} reads ({arrow.start + 1}), {_READS[arrow.flow]}")
        lines += _upstream(graph, arrow.start)
    return lines


def _made_by_operator(graph: Graph, number: int) -> bool:
    return all(graph.boxes[arrow.start].kind == "operator" for arrow in graph.into(number))
