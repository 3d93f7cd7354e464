"""A pipeline explained in words."""

from typing import Literal, TypeAlias

from floodplain.errors import BadInput
from floodplain.pipeline.explain.graph import Arrow, Box, Picture
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


def explained(drawn: Picture, format: Form = "text") -> str:  # noqa: A002 — as Spark calls it
    """``"text"``, ``"mermaid"`` or ``"svg"``."""
    forms = {"text": text, "mermaid": mermaid, "svg": svg}
    if format not in forms:
        raise BadInput(f"explain(format={format!r}) is not known: use {', '.join(map(repr, forms))}")
    return forms[format](drawn)


def text(drawn: Picture) -> str:
    return "\n".join(["== Logical dataflow ==", *_logical(drawn), "", "== Physical plan ==", *_physical(drawn), ""])


def _logical(drawn: Picture) -> list[str]:
    width = max((len(box.title) for box in drawn.boxes), default=0)
    digits = len(str(len(drawn.boxes))) + 2
    lines = []
    for number, box in enumerate(drawn.boxes):
        parts = [f"from {', '.join(_from(arrow) for arrow in drawn.into(number))}"] if drawn.into(number) else []
        lines.append(
            f"{f'({number + 1})':{digits}} {box.kind:8} {box.title:{width}}  {' · '.join([*parts, *box.lines])}".rstrip()
        )
    return lines


def _from(arrow: Arrow) -> str:
    side = arrow.label.partition(":")[0] if arrow.flow in ("staged", "exchange") and ":" in arrow.label else ""
    side = arrow.label if arrow.flow == "files" and arrow.label else side
    return f"({arrow.start + 1})" + (f" {side}" if side else "")


def _physical(drawn: Picture) -> list[str]:
    about = drawn.about
    slots = f"{about.slots} slots" if about.slots is not None else "as many slots as tasks run at once, until rescaled"
    groups = f" over {about.key_groups} key groups" if about.key_groups is not None else ""
    lines = [f"state at {about.location}"] if about.location is not None else []
    lines.append(f"each epoch: {slots}{groups} · {_exchanges(drawn)}")
    jobs = 0
    for number, box in enumerate(drawn.boxes):
        if box.kind == "operator":
            jobs += 1
            lines += _job(drawn, number, box, jobs)
        elif box.kind == "sink" and not _made_by_operator(drawn, number):
            jobs += 1
            start = drawn.into(number)[0].start
            lines += [f"job {jobs}: {box.title}", f"  stages the rows of ({start + 1}) as they are", *_upstream(drawn, start)]
    sinks = [f"({number + 1}) {box.title}" for number, box in enumerate(drawn.boxes) if box.kind == "sink"]
    lines.append("commit: one edit with state, input position, watermarks and staged output")
    return [*lines, f"publish: {', '.join(sinks)}"] if sinks else lines


def _exchanges(drawn: Picture) -> str:
    """How many shuffles there are in an epoch, as far as they are ours."""
    put = [box.together for box in drawn.boxes if box.together is not None]
    sure = sum(arrow.flow == "exchange" for arrow in drawn.arrows)
    sure += sum(each.when == "on" and each.exchanges == 1 for each in put)
    more = sum(each.exchanges != 0 and (each.when == "auto" or (each.when == "on" and each.exchanges is None)) for each in put)
    up_to = f", up to {more} more where rows are put together" if more else ""
    return f"{sure} exchange{'' if sure == 1 else 's'}{up_to}"


def _job(drawn: Picture, number: int, box: Box, job: int) -> list[str]:
    lines = [f"job {job}: {box.title}"]
    for arrow in drawn.into(number):
        lines.append(f"  reads ({arrow.start + 1}), {_READS[arrow.flow].format(label=arrow.label.rpartition(': ')[2])}")
        lines += _upstream(drawn, arrow.start)
    lines += [] if box.together is None else [f"  {box.together}"]
    lines += _kept(box)
    readers = [
        f"({arrow.end + 1})" + (f" {arrow.label}" if arrow.label else "") for arrow in drawn.arrows if arrow.start == number
    ]
    return [*lines, f"  stages output for {', '.join(readers)}"] if readers else lines


def _kept(box: Box) -> list[str]:
    """Tables, or states, of a job in one line each kind."""
    kinds: dict[str, list[str]] = {}
    for line in box.physical:
        kind, _, name = line.partition(" ")
        kinds.setdefault(kind, []).append(name)
    return [f"  {kind if len(names) == 1 else kind + 's'} {', '.join(names)}" for kind, names in kinds.items()]


def _upstream(drawn: Picture, number: int) -> list[str]:
    """The stateless steps that Spark runs in the same job, and where their rows come from."""
    box = drawn.boxes[number]
    if box.kind != "step":
        return []
    lines = []
    for arrow in drawn.into(number):
        lines.append(f"    ({number + 1}) {box.title} reads ({arrow.start + 1}), {_READS[arrow.flow]}")
        lines += _upstream(drawn, arrow.start)
    return lines


def _made_by_operator(drawn: Picture, number: int) -> bool:
    return all(drawn.boxes[arrow.start].kind == "operator" for arrow in drawn.into(number))
