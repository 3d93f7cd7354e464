"""Generates the figures of ``docs/benchmarks.md`` from ``docs/results/*.json``: ``python docs/figures.py``.

A result file is the last line that ``floodplain bench NAME --json`` printed, nothing changed. What ``--only PART`` printed is in
``NAME-PART.json``. The part of the page between
``<!-- figures:NAME -->`` and ``<!-- end -->`` is generated from it; a block without a result file stays as it is. The ratios of
``README.md`` are generated as well.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "benchmarks.md"
FRONT = DOCS.parent / "README.md"
RESULTS = DOCS / "results"
BLOCK = re.compile(r"(?<=<!-- figures:)([a-z-]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
FRONT_BLOCK = re.compile(r"(?<=<!-- ratios -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
OURS = "floodplain"
KINDS = ("value", "list", "map", "nested")
OPERATIONS = ("update", "point", "multi_get", "scan", "checkpoint", "restore", "repartition", "merge")

Result = dict[str, Any]


def results(folder: Path = RESULTS) -> dict[str, Result]:
    """Name of a benchmark → its result."""
    by_name = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    for name, result in by_name.items():
        if name not in (result.get("bench"), _of_part(result)):
            raise ValueError(f"{name}.json is a result of {result.get('bench')!r}: give the file its name")
    return by_name


def _of_part(result: Result) -> str:
    """What a result is called that has only some parts of its benchmark."""
    return "-".join([str(result.get("bench")), *result.get("figures", {}).get("sizes", {}).get("only", ())])


def renewed(page: str, by_name: dict[str, Result]) -> str:
    """The page with the figures of these results."""

    def block(match: re.Match[str]) -> str:
        name, mark, before = match.groups()
        return f"{name}{mark}{figures(name, by_name[name]) if name in by_name else before}"

    left = set(by_name) - {name for name, _, _ in BLOCK.findall(page)}
    if left:
        raise ValueError(
            f"the page has no place for figures of {', '.join(sorted(left))}: add <!-- figures:NAME --> and <!-- end -->"
        )
    return BLOCK.sub(block, page)


def figures(name: str, result: Result) -> str:
    """Plots and tables of one benchmark, in Markdown. ``name``: of its file."""
    pictures = [f"![{title}](plots/{plot}.svg)" for plot, title in PLOTS[name].items()]
    return "\n" + "\n\n".join([_run(name, result), *pictures, *filter(None, _TABLES[name](result))]) + "\n\n"


PLOTS = {
    "counter": {"counter": "Rows per second of each contender", "counter-slots": "Throughput and latency by number of slots"},
    "counter-workers": {},
    "process": {"process": "Rows per second of each contender"},
    "nexmark": {"nexmark": "Events per second and core of each query"},
    "cloud": {},
    "peers": {"peers": "Rows per second of each stream processor"},
    "slots": {},
    "state-types": {"state-types": "How many times our time RocksDB and a dict took"},
}
"""Benchmark → its plots, which ``plots.py`` draws, with what they show."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def number(value: float | None) -> str:
    """As people write it: thousands apart, no digits that mean nothing."""
    if value is None:
        return ""
    return f"{round(value):,}" if abs(value) >= 1000 else f"{value:g}"


def _run(name: str, result: Result) -> str:
    """What ran, on what, how large, and whether the answers were right."""
    figures, checks = result["figures"], result["checks"]
    machine = dict(figures["machine"])
    cores = machine.pop("cores")
    quick = figures.get("quick", figures["sizes"].get("quick"))
    only = f" --only {','.join(parts)}" if (parts := figures["sizes"].get("only")) else ""
    command = "A run" if quick is None else f"`floodplain bench {result['bench']}{only}{' --quick' if quick else ''} --json`"
    wrong = [f"`{check}`" for check, holds in checks.items() if not holds]
    sizes = figures["sizes"].get(name.removeprefix(f"{result['bench']}-"), figures["sizes"])
    return (
        f"{command} on {cores} cores, {round(figures['took_s'])} s; "
        f"{', '.join(f'{package} {version}' for package, version in machine.items())}. "
        f"Sizes: {', '.join(f'`{what}` {number(size)}' for what, size in _sizes(sizes))}. "
        + (f"**Wrong answers: {', '.join(wrong)}.**" if wrong else f"All {len(checks)} checks held.")
    )


def _sizes(sizes: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, size in sizes.items():
        if isinstance(size, dict):
            yield from _sizes(size)
        elif isinstance(size, int | float) and not isinstance(size, bool):
            yield name, size


def _targets(result: Result, names: Iterable[str] | None = None, more: Sequence[Sequence[object]] = ()) -> str:
    rows = []
    for name, target in result["figures"]["targets"].items():
        if names is None or name in names:
            word, bound = next((word, bound) for word, bound in target.items() if word != "met")
            rows.append([f"`{name}`", f"{word} {bound:g}", number(result["ratios"][name]), _met(target["met"])])
    return table(["target", "wanted", "measured", "met"], [*rows, *more])


def _met(met: bool) -> str:
    return "yes" if met else "**no**"


def _others(result: Result, names: Iterable[str]) -> str:
    return table(["ratio", "measured"], [[f"`{name}`", number(result["ratios"][name])] for name in names])


def _epochs(head: str, measured: dict[str, Any], names: dict[str, str] | None = None) -> str:
    """Rows a second and the time of an epoch, by contender or by what else is compared."""
    rows = [
        [(names or {}).get(name, name), *(number(one[what]) for what in ("rows_per_s", "epoch_p50_ms", "epoch_p99_ms"))]
        for name, one in measured.items()
    ]
    return table([head, "rows/s", "epoch p50, ms", "p99, ms"], rows)


def _counter(result: Result) -> list[str]:
    figures, sizes = result["figures"], result["figures"]["sizes"]
    keys = {OURS: number(sizes["keys"]), f"{OURS}_large": number(sizes["keys"] * sizes["factor"])}
    return [
        _targets(result),
        _epochs("contender", figures["counter"]),
        _epochs(f"epochs of {number(sizes['small_rows'])} rows", figures["small_epoch"]),
        _epochs("slots, ours alone", figures["slots"]),
        _epochs("keys in the state, ours alone", figures["growth"], keys),
    ]


def _engines(result: Result) -> list[str]:
    figures, sizes = result["figures"], result["figures"]["sizes"]["workers"]
    intervals = {f"`{name}`": f"{low:g} to {high:g}" for name, (low, high) in figures["intervals"].items()}
    memory = {f"a worker's memory, MB: {when}": number(mb) for when, mb in figures["worker_rss_mb"].items()}
    return [
        _targets(result),
        _epochs(f"epochs of {number(sizes['rows'])} rows", figures["engines"]),
        _epochs("the same, from JSON", figures["engines_json"]),
        _epochs(f"epochs of {number(sizes['small_rows'])} rows", figures["small_epochs_of_engines"]),
        table(
            ["", ""],
            [[f"95 % interval of {name}", between] for name, between in intervals.items()] + [[*each] for each in memory.items()],
        ),
    ]


def _process(result: Result) -> list[str]:
    others = [name for name in result["ratios"] if name not in result["figures"]["targets"]]
    return [_targets(result), _epochs("contender", result["figures"]["process"]), _others(result, others)]


def queries(result: Result) -> list[str]:
    return sorted((name for name in result["figures"] if re.fullmatch(r"q\d+", name)), key=lambda name: int(name[1:]))


def _nexmark(result: Result) -> list[str]:
    ratios = {name: result["ratios"].get(f"{name}_vs_spark") for name in queries(result)}
    of_workers = {name: result["ratios"].get(f"{name}_workers_vs_spark") for name in ratios}
    below = [_lowest(result, "_vs_spark", ratios), _lowest(result, "_workers_vs_spark", of_workers)]
    rows = []
    for name, ratio in ratios.items():
        query = result["figures"][name]
        both = (query[OURS], query.get("spark", {}))
        ours, spark = (number(one.get("events_per_s_and_core")) for one in both)
        workers = query.get("workers", {})
        with_workers = [number(workers.get("events_per_s_and_core")), number(of_workers[name])]
        epochs = [number(one.get(f"epoch_{share}_ms")) for share in ("p50", "p99") for one in (both[0], workers, both[1])]
        state_mb = [f"{one['state_bytes'] / 1e6:.1f}" if one else "" for one in both]
        ceiling = number(query["duckdb_in_one_batch"]["events_per_s_and_core"])
        rows.append(
            [name, ours, *with_workers[:1], spark or "cannot", number(ratio), *with_workers[1:], *epochs, *state_mb, ceiling]
        )
    head = [
        "query",
        "ours, events/s and core",
        "with workers",
        "Spark",
        "ratio",
        "with workers",
        "our epoch p50, ms",
        "with workers",
        "Spark's",
        "our epoch p99, ms",
        "with workers",
        "Spark's",
    ]
    head += ["our state, MB", "Spark's"]
    means = [name for name in ("nexmark_vs_spark", "workers_vs_spark") if name in result["ratios"]]
    return [_targets(result, means, [line for line in below if line]), table([*head, "DuckDB in one batch, events/s"], rows)]


def _lowest(result: Result, suffix: str, ratios: dict[str, float | None]) -> list[object]:
    """A line of the table of targets; empty if there is no ratio."""
    there = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if not there:
        return []
    lowest = min(there, key=lambda name: there[name])
    least = result["figures"]["targets"].get(f"{lowest}{suffix}", {}).get("at least", 1)
    return [f"`{lowest}{suffix}`, the lowest", f"at least {least:g}", number(there[lowest]), _met(there[lowest] >= least)]


def _cloud(result: Result) -> list[str]:
    figures = result["figures"]
    races = [_epochs(what, measured) for what, measured in figures.get("races", {}).items()]
    kinds = ("puts", "gets", "lists", "heads", "deletes")
    requests = figures.get("requests", {})
    users = {"all, by the proxy": requests["by_proxy"], **requests["by_user"]} if requests else {}
    rows = [[user, *(number(use.get(kind)) for kind in kinds)] for user, use in users.items()]
    others = [name for name in result["ratios"] if name not in figures["targets"]]
    return [
        _targets(result),
        _others(result, others) if others else "",
        table(["requests of an epoch", *kinds], rows) if rows else "",
        *races,
    ]


def _peers(result: Result) -> list[str]:
    figures, ratios = result["figures"], result["ratios"]
    rows = []
    for name in figures["count"]:
        speeds = [number(figures[which].get(name, {}).get("rows_per_s")) for which in ("count", "join")]
        by = [number(ratios.get(f"{which}_vs_{name}")) for which in ("counter", "join")]
        share = "all" if name == OURS else f"one in {figures['peers'][name]['share']}".replace("one in 1", "all")
        rows.append([name, speeds[0], by[0], speeds[1], by[1], share])
    missing = [[name, peer["unavailable"]] for name, peer in figures["peers"].items() if "unavailable" in peer]
    head = ["", "count, rows/s", "ours by theirs", "join, rows/s", "ours by theirs", "of the rows"]
    return [table(head, rows), table(["not there", "why"], missing) if missing else ""]


def _slots(result: Result) -> list[str]:
    slots = result["figures"]["slots"]
    rows = [[what, *(number(slots[count][what]) for count in slots)] for what in next(iter(slots.values()))]
    others = [name for name in result["ratios"] if name not in result["figures"]["targets"]]
    return [_targets(result), _others(result, others), table(["slots", *slots], rows)]


def _state_types(result: Result) -> list[str]:
    figures, ratios = result["figures"], result["ratios"]
    memory_mb = figures.get("lookup_rss_anon_mb")
    memory = [] if memory_mb is None else [["`lookup_rss_anon_mb`", "below 100", number(memory_mb), _met(memory_mb < 100)]]
    others = [name for name in ratios if name.startswith(("rmw_", "repartition_")) and name not in figures["targets"]]
    kinds = [
        [f"{what} vs {other}", *(number(ratios[f"{kind}_{what}_vs_{other}"]) for kind in KINDS)]
        for what in OPERATIONS
        for other in ("rocksdb", "dict")
    ]
    return [
        _targets(result, None, memory),
        _others(result, others),
        _milliseconds(figures["rmw"], figures["repartition"]),
        _growth(figures["growth"]),
        f"The four kinds, {number(figures['sizes']['type_keys'])} users each: how many times our time RocksDB and dict took.",
        table(["", *KINDS], kinds),
    ]


def _milliseconds(rmw: dict[str, Any], moved: dict[str, Any]) -> str:
    contenders = [OURS, "rocksdb", "dict", "rewrite", "copy"]
    spent = {
        f"read-modify-write of {number(rmw['changed_keys'])} of {number(rmw['keys'])} keys, mean": rmw["mean_ms"],
        "the same, median": rmw["median_ms"],
        "repartition {} keys, {} to {} slots".format(number(moved["keys"]), *moved["slots"]): moved["median_ms"],
        "the same, until each slot answered": moved["answers_median_ms"],
    }
    return table(
        ["milliseconds", *contenders], [[what, *(number(ms.get(one)) for one in contenders)] for what, ms in spent.items()]
    )


def _growth(growth: dict[str, Any]) -> str:
    sizes = ("small", "large")
    rows = [[what, *(number(growth[f"{what}_ms"][size]) for size in sizes)] for what in ("open", "repartition", "commit")]
    rows += [[f"{what} (s)", *(number(growth[size][f"{what}_s"]) for size in sizes)] for what in ("load", "compact")]
    return table(["our milliseconds", *(f"{number(growth[size]['rows'])} rows" for size in sizes)], rows)


_TABLES: dict[str, Callable[[Result], list[str]]] = {
    "counter": _counter,
    "counter-workers": _engines,
    "process": _process,
    "nexmark": _nexmark,
    "cloud": _cloud,
    "peers": _peers,
    "slots": _slots,
    "state-types": _state_types,
}


_SHOWN = {
    "counter": {
        "vs_transform_with_state": "count and sum per key, 1M keys: Python `transformWithState`",
        "vs_spark_rocksdb": "the same: Spark's own aggregation, RocksDB",
        "vs_spark_memory": "the same: Spark's own aggregation, in memory",
        "vs_stateless": "the same: a pipeline that keeps no state",
    },
    "counter-workers": {
        "workers_vs_transform_with_state": "the same, with workers that stay: Python `transformWithState`",
        "workers_vs_tasks": "the same, with workers that stay: Floodplain with a task per slot and epoch",
    },
    "process": {
        "vs_transform_with_state": "a function in Python with a value, a list and a timer per key: `transformWithState`",
        "dropin_vs_transform_with_state": "a `StatefulProcessor` of PySpark, unchanged: `transformWithState`",
    },
    "nexmark": {
        "nexmark_vs_spark": "Nexmark, geometric mean of 13 queries: Spark Structured Streaming",
        "workers_vs_spark": "the same, with workers that stay: Spark Structured Streaming",
    },
    "peers": {
        "counter_vs_flink_sql": "count and sum per key: Flink SQL, the fastest of the other stream processors",
        "join_vs_flink_sql": "interval join: Flink SQL, the fastest of them",
    },
}
"""Benchmark → the ratios that the front page shows, with what was raced: against whom."""


def front(page: str, by_name: dict[str, Result]) -> str:
    """The front page with the ratios of these results."""
    rows = [
        [what, number(by_name[name]["ratios"][ratio]), f"`floodplain bench {name.replace('-workers', ' --only workers')}`"]
        for name, shown in _SHOWN.items()
        if name in by_name
        for ratio, what in shown.items()
    ]
    made = "\n" + table(["what, against whom", "times as fast", "command"], rows) + "\n\n"
    return FRONT_BLOCK.sub(lambda _: made, page)


def main() -> int:
    by_name = results()
    FRONT.write_text(front(FRONT.read_text(), by_name))
    PAGE.write_text(renewed(PAGE.read_text(), by_name))
    print(f"figures of {', '.join(by_name)} in {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
