"""Every parameter of every operator, changed between two starts, one at a time.

What is there is found by reflection: an operator or a parameter that is new must be told here what else it could be, or a test
fails. Each changed pipeline either gives what one gives that was so from the start, or is refused before anything is written.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.operators.aggregates import functions as aggregates
from floodplain.pipeline.operators import Operations
from floodplain.pipeline.stream import Stream
from floodplain.pipeline.windowed import WindowedStream
from floodplain.state import descriptors
from floodplain.store.store import Store
from floodplain.testing.pipeline_kit import PipelineKit

ROWS = "user string, v long, w long, big boolean, odd boolean, s struct<a: long, b: long>, ts timestamp, at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES, PER_BATCH, RESTART = 8, 6, 4
"""Epochs, rows in each, and before which of them the changed pipeline is started."""


def batch(number: int) -> list[dict[str, Any]]:
    """Rows in the order of time, half a minute apart."""
    rows = []
    for i in range(number * PER_BATCH, (number + 1) * PER_BATCH):
        v, w = i * 7 % 5, i * 11 % 7
        ts = START + timedelta(seconds=30 * i)
        flags = {"big": v > 2, "odd": v % 2 == 1, "s": {"a": v + w, "b": v - w}}
        rows.append({"user": "abc"[i % 3], "v": v, "w": w, **flags, "ts": ts, "at": ts + timedelta(seconds=7)})
    return rows


def watermark_ms(number: int) -> int:
    """All but the last two rows so far are behind it."""
    return int((START + timedelta(seconds=30 * ((number + 1) * PER_BATCH - 3))).timestamp() * 1000)


Build = Callable[..., Any]


@dataclass(frozen=True)
class Asked:
    """An operator as it is called at first, and what else its parameters could be."""

    call: Callable[[Stream, Mapping[str, Any]], Stream]
    """The stream with the operator, given its arguments."""
    given: Mapping[str, Any]
    other: Mapping[str, list[Any]] = field(default_factory=dict)
    """Parameter → other values; a dict among them is several parameters at once."""
    like: Any = None
    """The function that has the parameters."""


def _by(name: str, keys: bool = True) -> Callable[[Stream, Mapping[str, Any]], Stream]:
    return lambda rows, given: getattr(rows.key_by("user") if keys else rows, name)(**given)


def _window(rows: Stream, given: Mapping[str, Any]) -> Stream:
    return rows.key_by("user").window(**given).agg(n=fp.count(), total=fp.sum("v"))


def _windowed(rows: Stream, given: Mapping[str, Any]) -> Stream:
    return rows.key_by("user").window(fp.tumbling("2 minutes")).agg(**given)


def _join(rows: Stream, given: Mapping[str, Any]) -> Stream:
    other = rows.where("big = true").select("user", "v", "ts", "at")
    return rows.select("user", "v", "w", "ts", "at").join(other, **{"suffixes": ("", "_r"), **given})


class Remembering(fp.KeyedProcess):
    """Sums by minute, and gives the sum of one out when event time has passed it."""

    totals = fp.Map("long", "long")
    output = "user string, total long"

    def process(self, key, rows, ctx):
        for each in rows:
            until = (int(each.ts.timestamp()) // 60 + 1) * 60_000
            self.totals.merge(until, each.v)
            ctx.timer(until)
        return ()

    def on_timer(self, key, at, ctx):
        yield key.user, self.totals.get(at)
        self.totals.remove(at)


class Renamed(Remembering):
    """The same under another name."""

    def __repr__(self) -> str:
        return "Renamed()"


MODES = ["retract"]
ORDERS = [True, fp.in_order(rows=2), fp.in_order(time="1 minute")]
LATE = ["1 minute", "3 hours"]
PARTIAL = [True, False]

OPERATORS: dict[str, Asked] = {
    "window": Asked(
        _window,
        {"windows": fp.tumbling("2 minutes")},
        {
            "windows": [
                *(fp.tumbling("5 minutes"), fp.tumbling("1 minute"), fp.tumbling("2 minutes", offset="30 seconds")),
                *(fp.sliding("2 minutes", "1 minute"), fp.session("1 minute"), fp.count_window(3), fp.global_window()),
            ],
            "lateness": LATE,
            "early": [fp.every_epoch(), fp.every_rows(2), fp.every("1 minute", "event")],
            "late": [{"late": fp.every_rows(2), "lateness": "1 minute"}],
            "firing": ["discarding", "retracting"],
            "on": ["at"],
            "in_order": ORDERS,
        },
    ),
    "sliding": Asked(
        _window,
        {"windows": fp.sliding("2 minutes", "1 minute"), "lateness": "1 minute"},
        {
            "windows": [fp.sliding("2 minutes", "30 seconds"), fp.sliding("4 minutes", "1 minute")],
            "lateness": ["0 seconds", "2 minutes", "6 hours"],
            "early": [fp.every_epoch()],
            "late": [fp.every_rows(2)],
            "firing": ["discarding", "retracting"],
            "on": ["at"],
            "in_order": [{"in_order": True, "lateness": "0 seconds"}],
        },
        Operations.window,
    ),
    "session": Asked(
        _window,
        {"windows": fp.session("1 minute")},
        {
            "windows": [fp.session("2 minutes"), fp.session("10 seconds")],
            "lateness": LATE,
            "early": [fp.every_epoch()],
            "late": [{"late": fp.every_rows(2), "lateness": "1 minute"}],
            "firing": ["discarding", "retracting"],
            "on": ["at"],
            "in_order": ORDERS,
        },
        Operations.window,
    ),
    "count_window": Asked(
        _window,
        {"windows": fp.count_window(3)},
        {
            "windows": [fp.count_window(2), fp.count_window(3, 1), fp.count_window(4)],
            "lateness": [],
            "early": [],
            "late": [],
            "firing": [],
            "on": ["at"],
            "in_order": ORDERS,
        },
        Operations.window,
    ),
    "windowed agg": Asked(
        _windowed,
        {"n": fp.count(), "total": fp.sum("v")},
        {
            "unnamed": [],
            "name": ["other"],
            "partial": PARTIAL,
            "aggregates": [{"n": fp.sum("v")}, {"more": fp.max("v")}, {"total": None}],
        },
        WindowedStream.agg,
    ),
    "agg": Asked(
        _by("agg"),
        {"n": fp.count(), "total": fp.sum("v"), "newest": fp.last("w")},
        {
            "unnamed": [],
            "name": ["other"],
            "mode": MODES,
            "partial": PARTIAL,
            "in_order": ORDERS,
            "aggregates": [{"n": fp.sum("v")}, {"more": fp.max("v")}, {"total": None}, {"newest": fp.last("v")}],
        },
    ),
    "dedup": Asked(
        _by("dedup"),
        {"within": "2 minutes"},
        {
            "columns": [],
            "within": [None, "1 minute", "10 minutes"],
            "keep": ["last"],
            "by": ["v", "w desc"],
            "mode": [{"mode": "retract", "keep": "last"}],
            "lateness": LATE,
            "in_order": ORDERS,
            "name": ["other"],
        },
    ),
    "dedup for ever": Asked(
        lambda rows, given: rows.dedup("user", "v", "w", **given),
        {},
        {
            "columns": [],
            "within": ["1 minute"],
            "keep": ["last"],
            "by": ["v", "w desc"],
            "mode": [{"mode": "retract", "keep": "last"}],
            "lateness": [],
            "in_order": ORDERS,
            "name": ["other"],
        },
        Operations.dedup,
    ),
    "top": Asked(
        _by("top"),
        {"count": 3, "by": "v desc, w"},
        {
            "count": [1, 2, 4],
            "by": ["v", "w desc, v"],
            "mode": MODES,
            "ties": [{"ties": True, "mode": "retract"}],
            "until": [{"until": "at", "mode": "append"}],
            "rank": ["place", {"rank": None, "mode": "retract"}],
            "partial": PARTIAL,
            "lateness": [],
            "in_order": ORDERS,
            "name": ["other"],
        },
    ),
    "top of windows": Asked(
        lambda rows, given: (
            rows.key_by("user").window(fp.tumbling("2 minutes")).agg(n=fp.sum("v")).key_by("window_end").top(**given)
        ),
        {"count": 2, "by": "n desc, user", "until": "window_end", "mode": "append"},
        {
            "count": [1, 3],
            "by": ["user"],
            "mode": [{"mode": "update", "until": None}],
            "ties": [True],
            "until": ["window_start"],
            "rank": ["place", None],
            "partial": PARTIAL,
            "lateness": LATE,
            "in_order": [],
            "name": ["other"],
        },
        Operations.top,
    ),
    "last": Asked(
        _by("last"),
        {"by": "v, w"},
        {
            "by": [None, "w", "v desc"],
            "mode": MODES,
            "ttl": ["1 minute"],
            "partial": PARTIAL,
            "lateness": [{"lateness": "1 minute", "ttl": "5 minutes"}],
            "in_order": ORDERS,
            "name": ["other"],
        },
    ),
    "last for a while": Asked(
        _by("last"),
        {"by": "v, w", "ttl": "2 minutes"},
        {
            "by": [None, "w"],
            "mode": MODES,
            "ttl": [None, "1 minute", "20 minutes"],
            "partial": PARTIAL,
            "lateness": LATE,
            "in_order": ORDERS,
            "name": ["other"],
        },
        Operations.last,
    ),
    "first": Asked(
        _by("first"),
        {"by": "v, w"},
        {
            "by": [None, "w", "v desc"],
            "mode": MODES,
            "ttl": ["1 minute"],
            "partial": PARTIAL,
            "lateness": [{"lateness": "1 minute", "ttl": "5 minutes"}],
            "in_order": ORDERS,
            "name": ["other"],
        },
    ),
    "pivot": Asked(
        _by("pivot"),
        {"column": "v", "values": {1: "one", 2: "two"}, "value": "w"},
        {
            "column": ["w"],
            "values": [{"values": {2: "two", 1: "one"}}, {"values": {1: "uno", 2: "due"}}, {"values": {1: "one"}}],
            "value": ["v"],
            "repeats": ["sum", "min", "max"],
            "by": ["w"],
            "mode": MODES,
            "in_order": ORDERS,
            "name": ["other"],
        },
    ),
    "join": Asked(
        _join,
        {"on": "user", "within": ("-1 minute", "1 minute")},
        {
            "other": [],
            "on": [["user", "v"]],
            "how": ["left", "right", "full", "semi", "anti"],
            "within": [("-30 seconds", "1 minute"), ("-1 minute", "5 minutes"), None],
            "window": [{"window": fp.tumbling("1 minute"), "within": None}],
            "as_of": [{"as_of": True, "within": None}],
            "ttl": [{"ttl": "1 minute", "within": None}],
            "ttl_clock": [{"ttl": "1 minute", "ttl_clock": "event", "within": None}],
            "times": [("at", "at"), ("ts", "at")],
            "lateness": LATE,
            "suffixes": [("_l", "_r"), ("", "_2")],
            "name": ["other"],
        },
    ),
    "outer join": Asked(
        _join,
        {"on": "user", "how": "left", "within": ("-1 minute", "1 minute")},
        {
            "other": [],
            "on": [["user", "v"]],
            "how": ["inner", "right", "full", "semi", "anti"],
            "within": [("-30 seconds", "1 minute"), ("-1 minute", "5 minutes")],
            "window": [{"window": fp.tumbling("1 minute"), "within": None}],
            "as_of": [{"as_of": True, "within": None}],
            "ttl": [{"ttl": "1 minute", "within": None}],
            "ttl_clock": [],
            "times": [("at", "at")],
            "lateness": LATE,
            "suffixes": [("_l", "_r")],
            "name": ["other"],
        },
        Operations.join,
    ),
    "window join": Asked(
        _join,
        {"on": "user", "window": fp.tumbling("1 minute")},
        {
            "other": [],
            "on": [["user", "v"]],
            "how": ["left", "full"],
            "within": [],
            "window": [fp.tumbling("2 minutes"), fp.sliding("2 minutes", "1 minute")],
            "as_of": [],
            "ttl": [],
            "ttl_clock": [],
            "times": [("at", "at")],
            "lateness": LATE,
            "suffixes": [("_l", "_r")],
            "name": ["other"],
        },
        Operations.join,
    ),
    "as-of join": Asked(
        _join,
        {"on": "user", "as_of": True},
        {
            "other": [],
            "on": [["user", "v"]],
            "how": ["left"],
            "within": [],
            "window": [],
            "as_of": [False],
            "ttl": [],
            "ttl_clock": [],
            "times": [("at", "at")],
            "lateness": LATE,
            "suffixes": [("_l", "_r")],
            "name": ["other"],
        },
        Operations.join,
    ),
    "unbounded join": Asked(
        _join,
        {"on": "user"},
        {
            "other": [],
            "on": [["user", "v"]],
            "how": ["left", "semi"],
            "within": [("-1 minute", "1 minute")],
            "window": [],
            "as_of": [True],
            "ttl": ["1 hour"],
            "ttl_clock": [{"ttl": "1 minute", "ttl_clock": "event"}],
            "times": [],
            "lateness": [],
            "suffixes": [("_l", "_r")],
            "name": ["other"],
        },
        Operations.join,
    ),
    "retractable agg": Asked(
        lambda rows, given: rows.key_by("user").agg(n=fp.count(), name="first", mode="retract").key_by("n").agg(**given),
        {"users": fp.count(), "most": fp.max("user")},
        {
            "unnamed": [],
            "name": ["other"],
            "mode": MODES,
            "partial": PARTIAL,
            "in_order": [],
            "aggregates": [{"users": fp.sum("n")}, {"more": fp.max("user", since="now")}, {"most": None}],
        },
        Operations.agg,
    ),
    "retractable top": Asked(
        lambda rows, given: rows.key_by("user").agg(n=fp.sum("v"), name="first", mode="retract").key_by(k="true").top(**given),
        {"count": 2, "by": "n desc", "mode": "retract"},
        {
            "count": [1, 3],
            "by": ["user"],
            "mode": [],
            "ties": [True],
            "until": [],
            "rank": ["place", None],
            "partial": PARTIAL,
            "lateness": [],
            "in_order": [],
            "name": ["other"],
        },
        Operations.top,
    ),
}

OPERATORS["process"] = Asked(
    lambda rows, given: rows.key_by("user").process(**given),
    {"process": Remembering(), "name": "remembering"},
    {
        "process": [Renamed()],
        "name": ["other"],
        "on_error": ["dead_letter"],
        "broadcast": [],
        "in_order": ORDERS,
        "lateness": LATE,
    },
    Stream.process,
)
NOT_OPERATORS = {"check_same_input", "time"}
STATELESS = {"lookup": "it keeps nothing by key; all its parameters may change (test below)"}


def changed(asked: Asked, parameter: str, value: Any) -> dict[str, Any]:
    more = value if isinstance(value, dict) else {parameter: value}
    given = {**asked.given, **more}
    # An aggregate that is None is one that is left out.
    return {name: each for name, each in given.items() if not (each is None and parameter == "aggregates")}


def cases() -> Iterator[Any]:
    for name, asked in OPERATORS.items():
        for parameter, values in asked.other.items():
            for value in values:
                yield pytest.param(asked, changed(asked, parameter, value), id=f"{name}-{parameter}-{value}"[:90])


def test_every_operator_and_parameter_is_here():
    methods = {name for name, each in vars(Operations).items() if not name.startswith("_") and callable(each)}
    assert methods - NOT_OPERATORS - STATELESS.keys() <= OPERATORS.keys(), "a new operator: tell what its parameters could be"
    for name, asked in OPERATORS.items():
        function = asked.like or getattr(Operations, name)
        known = inspect.signature(function).parameters.keys() - {"self"}
        assert known == asked.other.keys(), f"{name}: a parameter is new or gone: tell what else it could be"


def build_of(asked: Asked, given: Mapping[str, Any]) -> Build:
    return lambda stream: asked.call(stream.watermark("ts", "0 seconds"), given).write("memory")


def run(kit: PipelineKit, numbers: range) -> list[list[str]]:
    """What each epoch gives, in a form to compare. After the last batch the watermark passes everything."""
    given = [kit.epoch(batch(number), watermark_ms=watermark_ms(number)) for number in numbers]
    if numbers[-1] == BATCHES - 1:
        given += [kit.epoch([], watermark_ms=watermark_ms(BATCHES) + hours * 3_600_000) for hours in (10, 20)]
    return [sorted(map(repr, rows["output"])) for rows in given]


FIRST, THEN = range(RESTART), range(RESTART, BATCHES)


@dataclass(frozen=True)
class Outcome:
    refused: BadInput | None
    same: bool = True


def outcome(before: Build, after: Build) -> Outcome:
    """Of the one, and then the other on its state; compared with the other from the start."""
    kit = PipelineKit(before, rows=ROWS)
    old = run(kit, FIRST)
    kit.stop()
    head = kit.store.history.refresh()
    try:
        kit.restart(after)
    except BadInput as refusal:
        now = kit.store.history.refresh()
        assert (now.schemas, now.runs, now.definitions, now.epoch) == (head.schemas, head.runs, head.definitions, head.epoch)
        return Outcome(refusal)
    new = run(kit, THEN)
    whole = PipelineKit(after, rows=ROWS)
    expected = run(whole, FIRST), run(whole, THEN)
    in_all = [sorted(chain.from_iterable(some)) for some in ([*old, *new], [*expected[0], *expected[1]])]
    return Outcome(None, new == expected[1] or in_all[0] == in_all[1])


@pytest.mark.parametrize(("asked", "given"), list(cases()))
def test_a_changed_parameter_gives_what_it_would_from_the_start_or_is_refused(asked, given):
    found = outcome(build_of(asked, asked.given), build_of(asked, given))
    assert found.same, "neither refused nor as from the start"


MUST_GO_ON = [
    *(("window", {"lateness": each}) for each in LATE),
    ("sliding", {"lateness": "2 minutes"}),
    ("session", {"lateness": "3 hours"}),
    ("dedup", {"lateness": "3 hours"}),
    ("join", {"lateness": "3 hours"}),
    *((name, {"partial": each}) for name in ("windowed agg", "agg", "top", "last", "first") for each in PARTIAL),
    *(("top", {"count": each}) for each in (1, 2)),
    ("top of windows", {"count": 1}),
    ("join", {"suffixes": ("_l", "_r")}),
    ("agg", {"mode": "retract"}),
    ("pivot", {"values": {1: "uno", 2: "due"}}),
    ("process", {"process": Renamed()}),
    ("process", {"on_error": "dead_letter"}),
    ("process", {"lateness": "3 hours"}),
]


@pytest.mark.parametrize(("name", "more"), MUST_GO_ON, ids=str)
def test_what_must_go_on_does(name, more):
    asked = OPERATORS[name]
    assert outcome(build_of(asked, asked.given), build_of(asked, {**asked.given, **more})) == Outcome(None, True)


AGGREGATES = {
    "count": [fp.count(), fp.count("v"), fp.count(where="big")],
    "sum": [fp.sum("v"), fp.sum("w"), fp.sum("v", where="big")],
    "avg": [fp.avg("v"), fp.avg("w"), fp.avg("v", where="odd")],
    "min": [fp.min("v"), fp.min("w"), fp.min("v", where="big")],
    "max": [fp.max("v"), fp.max("w"), fp.max("v", where="big")],
    "min_by": [fp.min_by("v", "w"), fp.min_by("w", "w"), fp.min_by("v", "s.a"), fp.min_by("v", "w", where="big")],
    "max_by": [fp.max_by("v", "w"), fp.max_by("w", "w"), fp.max_by("v", "s.a"), fp.max_by("v", "w", where="big")],
    "first": [fp.first("v"), fp.first("w"), fp.first("v", by="w"), fp.first("v", where="big")],
    "last": [fp.last("v"), fp.last("w"), fp.last("v", by="w"), fp.last("v", where="big")],
    "count_distinct": [fp.count_distinct("v"), fp.count_distinct("w"), fp.count_distinct("v", where="big")],
    "approx_count_distinct": [
        fp.approx_count_distinct("v"),
        fp.approx_count_distinct("w"),
        fp.approx_count_distinct("v", 0.1),
        fp.approx_count_distinct("v", where="big"),
    ],
    "approx_quantile": [
        fp.approx_quantile("v", 0.5),
        fp.approx_quantile("w", 0.5),
        fp.approx_quantile("v", 0.9),
        fp.approx_quantile("v", 0.5, 0.05),
        fp.approx_quantile("v", 0.5, where="big"),
    ],
    "top_k": [fp.top_k("v", 2), fp.top_k("w", 2), fp.top_k("v", 1), fp.top_k("v", 2, by="w"), fp.top_k("v", 2, where="big")],
    "collect": [fp.collect("v"), fp.collect("w"), fp.collect("v", by="w"), fp.collect("v", where="big")],
}
"""Each with every parameter changed."""


def test_every_aggregate_and_parameter_is_here():
    functions = {
        name: each
        for name, each in vars(aggregates).items()
        if inspect.isfunction(each) and each.__module__ == aggregates.__name__
    }
    assert functions.keys() == AGGREGATES.keys()
    for name, function in functions.items():
        changeable = len(inspect.signature(function).parameters.keys() - {"since"})
        assert len(AGGREGATES[name]) == changeable + 1, f"{name}: one aggregate to begin with, and one for each parameter"


def _aggregated(form: str, aggregate: Any) -> Build:
    def build(stream: Stream) -> Any:
        rows = stream.watermark("ts", "0 seconds").key_by("user")
        if form == "windows":
            return rows.window(fp.sliding("3 minutes", "1 minute")).agg(x=aggregate).write("memory")
        return rows.agg(x=aggregate).write("memory")

    return build


@pytest.mark.parametrize("form", ["windows", "running"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(one, other, id=f"{name}-{number}")
        for name, (one, *others) in AGGREGATES.items()
        for number, other in enumerate([*others, fp.count() if name != "count" else fp.sum("v")])
    ],
)
def test_a_changed_aggregate_gives_what_it_would_from_the_start_or_is_refused(form, one, other):
    assert outcome(_aggregated(form, one), _aggregated(form, other)).same


@pytest.mark.parametrize("form", ["windows", "running"])
@pytest.mark.parametrize("name", AGGREGATES)
def test_an_added_aggregate_sees_the_rows_that_come_after_it(form, name):
    """As in a run whose rows before had nothing for it to see."""
    added = AGGREGATES[name][0]
    now = added.with_arguments(added.arguments, added.where)
    object.__setattr__(now, "since", "now")

    def build(**more: Any) -> Build:
        def built(stream: Stream) -> Any:
            rows = stream.watermark("ts", "0 seconds").key_by("user")
            if form == "windows":
                rows = rows.window(fp.sliding("3 minutes", "1 minute"))
            return rows.agg(n=fp.count(), **more).write("memory")

        return built

    kit = PipelineKit(build(), rows=ROWS)
    run(kit, FIRST)
    kit.stop()
    kit.restart(build(more=now))
    given = [kit.epoch(batch(number), watermark_ms=watermark_ms(number))["output"] for number in THEN]
    # The oracle: the same pipeline of which only the rows after the restart reach the aggregate.
    whole = PipelineKit(build(more=added.with_arguments(added.arguments, "new")), rows=f"{ROWS}, new boolean")
    expected = []
    for number in range(BATCHES):
        rows = [{**row, "new": number >= RESTART} for row in batch(number)]
        expected.append(whole.epoch(rows, watermark_ms=watermark_ms(number))["output"])
    assert [sorted(map(repr, some)) for some in given] == [sorted(map(repr, some)) for some in expected[RESTART:]]


@dataclass(frozen=True)
class Declared:
    """A declaration of state, and what else its parameters could be."""

    given: Mapping[str, Any]
    other: Mapping[str, list[Any]]


TTL = {"ttl": ["1 hour"], "ttl_clock": [{"ttl": "1 hour", "ttl_clock": "event"}], "was": [None]}
STATES: dict[type, Declared] = {
    descriptors.Value: Declared(
        {"type": "long", "default": 0},
        {
            **TTL,
            "type": ["int", "double", {"type": "string", "default": ""}],
            "default": [7],
            "nullable": [False],
            "companion": [None],
            "whole": [True],
        },
    ),
    descriptors.Reducing: Declared(
        {"type": "long", "merge": "sum", "default": 0},
        {**TTL, "type": ["double", "int"], "merge": ["max", "min"], "default": [5]},
    ),
    descriptors.List: Declared({"type": "int"}, {**TTL, "type": ["long", {"type": "string"}], "prefetch": ["lazy"]}),
    descriptors.Set: Declared({"type": "long"}, {**TTL, "type": ["int"], "prefetch": ["lazy"]}),
    descriptors.Map: Declared(
        {"key": "long", "value": "int"},
        {**TTL, "key": ["int"], "value": ["long"], "merge": ["max"], "prefetch": ["lazy"], "whole": [True]},
    ),
}
ELSEWHERE = {descriptors.Aggregating, descriptors.Timers, descriptors.TaskValue, descriptors.Broadcast}
"""Those that have code for parameters, or none."""


class Keeping(fp.KeyedProcess):
    """Keeps numbers in a state of any kind, and gives out what it has."""

    output = "user string, kept string"

    def __init__(self, kind: type, given: Mapping[str, Any]) -> None:
        self.kind, self.given = kind.__name__, dict(given)

    def states(self):
        return {"kept": getattr(descriptors, self.kind)(**self.given)}

    def process(self, key, rows, ctx):
        kept = self.kept
        for row in rows:
            v = str(row.v) if self.given.get("type") == "string" else row.v
            match self.kind:
                case "Value":
                    kept.set(v if self.given.get("type") == "string" else kept.get() + v)
                case "Reducing" | "Set":
                    kept.add(v)
                case "List":
                    kept.append(v)
                case "Map":
                    kept.merge(v, 1)
        found = kept.get() if self.kind in ("Value", "Reducing") else sorted(kept.items() if self.kind == "Map" else kept)
        if isinstance(found, float):
            found = int(found)
        yield key.user, repr(found)


def _state_cases() -> Iterator[Any]:
    for kind, declared in STATES.items():
        for parameter, values in declared.other.items():
            for value in values:
                more = value if isinstance(value, dict) else {parameter: value}
                yield pytest.param(kind, declared.given, {**declared.given, **more}, id=f"{kind.__name__}-{parameter}-{value}")


def test_every_kind_of_state_and_parameter_is_here():
    kinds = set(descriptors.State.__args__)
    assert kinds == STATES.keys() | ELSEWHERE
    for kind, declared in STATES.items():
        assert {item.name for item in fields(kind) if item.name != "_"} == declared.other.keys(), kind


@pytest.mark.parametrize(("kind", "given", "other"), list(_state_cases()))
def test_a_changed_state_gives_what_it_would_from_the_start_or_is_refused(kind, given, other):
    def build(these: Mapping[str, Any]) -> Build:
        return lambda stream: (
            stream.watermark("ts", "0 seconds").key_by("user").process(Keeping(kind, these), name="keeping").write("memory")
        )

    assert outcome(build(given), build(other)).same


def test_a_lookup_may_change_as_it_likes(tmp_path):
    store = Store.open(tmp_path / "levels", create=True)
    with store.writer("test") as writer:
        for table in ("levels", "others"):
            writer.define(fp.value_table(table, {"name": pa.string()}, {"level": pa.int64(), "more": pa.int64()}))
            writer.put(table, pa.table({"name": ["a", "b"], "level": [1, 2], "more": [3, 4]}))
    given = {"state": str(tmp_path / "levels"), "table": "levels", "on": {"user": "name"}}
    others = {
        "state": [],
        "table": ["others"],
        "on": [],
        "how": ["inner"],
        "at": [1, 2],
        "prefix": ["p_"],
        "options": [{}],
        "in_order": [],
        "name": [],
    }
    assert others.keys() == inspect.signature(Operations.lookup).parameters.keys() - {"self"}

    def build(more: Mapping[str, Any]) -> Build:
        return lambda stream: stream.watermark("ts", "0 seconds").lookup(**{**given, **more}).write("memory")

    for parameter, values in others.items():
        for value in values:
            assert outcome(build({}), build({parameter: value})) == Outcome(None, True), parameter
