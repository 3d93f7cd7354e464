"""What a pipeline that replaces a running one must have in common with it: inputs, watermark, sinks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from floodplain.errors import BadInput
from floodplain.pipeline.stream import Output
from floodplain.plan.nodes import Outlet

INSTEAD = "it cannot change while the query runs: call query.stop(), then start the new pipeline on the same state"


def replacement(running: Output, new: Output, same: Callable[[Any, Any], bool]) -> Output:
    """The new pipeline with the sinks of the running one, which go on. ``same``: whether two DataFrames are the same input.

    Raises ``BadInput`` that names what cannot be changed live.
    """
    if not isinstance(new, Output):
        raise BadInput(f"update takes a pipeline with its sinks, as start does, and this is a {type(new).__name__}: call write")
    _check_inputs("input", running.stream.sources, new.stream.sources, same)
    _check_inputs("broadcast input of operator", running.stream.broadcasts, new.stream.broadcasts, same)
    was, now = ((each.stream.event_time, each.stream.delay_ms, each.stream.rule) for each in (running, new))
    if was != now:
        raise BadInput(f"update: the watermark is another than that of the running pipeline; {INSTEAD}")
    _check_sinks(running, new)
    sinks = {outlet.name: outlet.sink for outlet in running.outlets if not outlet.sink.replaceable}
    outlets = (replace(outlet, sink=sinks.get(outlet.name, outlet.sink)) for outlet in new.outlets)
    return Output(new.stream, tuple(outlets))


def _check_inputs(what: str, running: Mapping[str, Any], new: Mapping[str, Any], same: Callable[[Any, Any], bool]) -> None:
    for tag in {**running, **new}:
        named = f"{what} {tag}".strip()
        if tag not in new:
            raise BadInput(f"update: the running pipeline reads {named}, and the new one does not; {INSTEAD}")
        if tag not in running:
            raise BadInput(f"update: the new pipeline reads {named}, and the running one does not; {INSTEAD}")
        if running[tag] is not new[tag] and not same(running[tag], new[tag]):
            raise BadInput(
                f"update: {named} is another DataFrame than that of the running pipeline: build the new one from the same "
                f"fp.stream(…). If the input is to change: {INSTEAD}"
            )


def _check_sinks(running: Output, new: Output) -> None:
    was, now = ({outlet.name: outlet for outlet in each.outlets} for each in (running, new))
    if was.keys() != now.keys():
        names = [", ".join(sorted(each)) for each in (was, now)]
        raise BadInput(f"update: the sinks of the running pipeline are {names[0]}, those of the new one {names[1]}; {INSTEAD}")
    for name, outlet in was.items():
        why = _difference(outlet, now[name])
        if why:
            raise BadInput(f"update: sink {name} {why}; {INSTEAD}")


def _difference(was: Outlet, now: Outlet) -> str:
    if was.sink is now.sink:
        return ""
    if type(was.sink) is not type(now.sink):
        return f"was {was.sink.kind}, is {now.sink.kind}"
    if was.options is None or now.options is None:
        return "" if was.sink.replaceable else "is another object: pass the one that the query was started with"
    changed = sorted(name for name in {**was.options, **now.options} if was.options.get(name) != now.options.get(name))
    return f"has another {', '.join(changed)}" if changed else ""
