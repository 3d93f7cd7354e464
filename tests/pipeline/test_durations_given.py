"""Every option that takes a length of time as text takes a ``timedelta`` for the same, found by reflection."""

import inspect
import typing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.eventtime.options import WatermarkOptions
from floodplain.operators.ranking.latest import Latest
from floodplain.pipeline.join import JoinOptions
from floodplain.pipeline.stream import Output, Stream
from floodplain.state.descriptors import Value
from floodplain.state.durations import to_ms
from floodplain.testing.pipeline_kit import PipelineKit

NAMED = {"delay", "idle", "lateness", "ttl", "within", "time", "size", "slide", "offset", "gap", "interval"}
"""What options that are lengths of time are called."""
FUNCTIONS = [
    fp.tumbling,
    fp.sliding,
    fp.session,
    fp.every,
    fp.in_order,
    fp.ProcessKit,
    *(member for kind in (Stream, Output) for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")),
]
DECLARED = [fp.Value, fp.List, fp.Map, fp.Set, fp.Reducing, fp.Aggregating, WatermarkOptions, JoinOptions]


def _is_span(annotation: Any) -> bool:
    return timedelta in typing.get_args(annotation) or any(map(_is_span, typing.get_args(annotation)))


def _options() -> list[tuple[str, str, Any]]:
    found = []
    for one in [*FUNCTIONS, *DECLARED]:
        for name, parameter in inspect.signature(one).parameters.items():
            if name in NAMED and parameter.annotation is not bool:
                found.append((one.__qualname__, name, parameter.annotation))
    return found


@pytest.mark.parametrize(("of", "name", "annotation"), [found for found in _options() if found[2] not in (int, int | None)])
def test_an_option_that_is_a_length_of_time_may_be_a_timedelta(of, name, annotation):
    assert _is_span(annotation), f"{of}({name}=) takes {annotation}"


def test_reflection_finds_the_options():
    assert {name for _, name, _ in _options()} == NAMED


LATEST = pa.schema({"k": pa.string(), "at": pa.timestamp("us", "UTC")})
TEXTS = ["1 second", "90 minutes", "500 ms", "2 days 3 hours"]


@pytest.mark.parametrize("text", TEXTS)
def test_both_forms_mean_the_same(text):
    span = timedelta(milliseconds=to_ms(text))
    assert fp.tumbling(text, offset="1 ms") == fp.tumbling(span, offset=timedelta(milliseconds=1))
    assert fp.sliding(text, "1 ms") == fp.sliding(span, timedelta(milliseconds=1))
    assert fp.session(text) == fp.session(span) and fp.every(text) == fp.every(span)
    assert fp.in_order(time=text) == fp.in_order(time=span)
    assert Value("long", ttl=text).ttl_ms == Value("long", ttl=span).ttl_ms
    assert Latest(ttl=text).bind(LATEST, ("k",), "at").states()["row"].ttl_ms == to_ms(text)
    assert Latest(ttl=span).bind(LATEST, ("k",), "at").states()["row"].ttl_ms == to_ms(text)
    for made in (_watermark, _dedup, _joined, _window):
        assert made(text).explain() == made(span).explain()


def _kit(build: Any) -> PipelineKit:
    return PipelineKit(lambda s: build(s).write("memory"), rows="k string, at timestamp")


def _watermark(span: Any) -> PipelineKit:
    return _kit(lambda s: s.watermark("at", span, idle=span, sources={"": span}).dedup("k"))


def _dedup(span: Any) -> PipelineKit:
    return _kit(lambda s: s.watermark("at", span).dedup("k", within=span, lateness=span))


def _window(span: Any) -> PipelineKit:
    options: Any = {"early": fp.every(span), "lateness": span}
    return _kit(lambda s: s.watermark("at", "1 ms").key_by("k").window(fp.tumbling(span), **options).agg(n=fp.count()))


def _joined(span: Any) -> PipelineKit:
    def joined(s: Any) -> Any:
        timed = s.watermark("at", "1 ms")
        return timed.join(timed.where("k = 'a'"), "k", within=("0 ms", span), suffixes=("", "_r"))

    return _kit(joined)


def test_what_is_no_length_of_time_is_refused():
    for odd in (5, 1.5, None, timedelta(microseconds=1), timedelta(seconds=-1)):
        with pytest.raises(BadInput):
            fp.session(odd)
