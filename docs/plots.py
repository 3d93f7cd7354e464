"""Draws ``docs/plots/*.svg`` from ``docs/results/*.json``: ``python docs/plots.py``. The same results give the same bytes.

Each picture carries the digest of the result file that it was made from, by which a test knows an old one.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from figures import DOCS, KINDS, OPERATIONS, OURS, PLOTS, RESULTS, Result, queries, results
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = DOCS / "plots"
BLUE, SKY, ORANGE, GREY, DARK, PALE = "#1f6fb2", "#7fb2dd", "#e07b39", "#9aa7b4", "#1b2530", "#dfe5eb"
MARKS = dict(zip(KINDS, "osD^", strict=True))
STYLE = {
    "svg.hashsalt": "floodplain",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": DARK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": DARK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": PALE,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "legend.frameon": False,
}


def figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    made = Figure(figsize=(width, height), layout="constrained")
    return made, list(made.subplots(1, panels, squeeze=False)[0])


def bars(axes: Axes, speeds: Mapping[str, float], notes: Mapping[str, str], unit: str) -> None:
    """One bar a contender, the fastest on top, log scale; ours stands out."""
    names = sorted(speeds, key=lambda name: speeds[name])
    axes.barh(names, [speeds[name] for name in names], color=[colour(name) for name in names], height=0.65)
    axes.set_xscale("log")
    axes.set_xlim(min(speeds.values()) / 3, max(speeds.values()) * 12)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(short))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{unit}, log scale")
    for name in names:
        axes.annotate(
            f"{speeds[name]:,}{notes.get(name, '')}", (speeds[name], name), xytext=(5, 0), textcoords="offset points", va="center"
        )


def colour(name: str) -> str:
    return BLUE if name == OURS else SKY if name.startswith("dropin") else GREY


def short(value: float, _: object = None) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def times(ratio: float | None) -> str:
    """Our speed relative to a contender's: the label of its bar."""
    return "" if ratio is None else f"  (ours {ratio:g}×)"


def contenders(result: Result, title: str) -> Figure:
    """Rows a second of all contenders of a benchmark on Spark."""
    measured, ratios = result["figures"][result["bench"]], result["ratios"]
    made, (axes,) = figure(9, 0.5 * len(measured) + 1.4)
    bars(
        axes,
        {name: one["rows_per_s"] for name, one in measured.items()},
        {name: times(ratios.get(f"vs_{name}")) for name in measured},
        "rows per second",
    )
    axes.set_title(f"{title}: rows per second on {result['figures']['machine']['cores']} cores")
    return made


def counter(result: Result) -> Figure:
    return contenders(result, "Count and sum per key")


def process(result: Result) -> Figure:
    return contenders(result, "A process function in Python")


def counter_slots(result: Result) -> Figure:
    by_slots = result["figures"]["slots"]
    made, (throughput, latency) = figure(9, 3.4, 2)
    slots = list(by_slots)
    throughput.bar(slots, [one["rows_per_s"] for one in by_slots.values()], color=BLUE, width=0.6)
    for slot, one in by_slots.items():
        throughput.annotate(
            short(round(one["rows_per_s"], -3)), (slot, one["rows_per_s"]), xytext=(0, 4), textcoords="offset points", ha="center"
        )
    throughput.set_title("Throughput by slots: rows per second")
    for what, line, style in (("p50", BLUE, "-o"), ("p99", ORANGE, "-s")):
        latency.plot(slots, [one[f"epoch_{what}_ms"] for one in by_slots.values()], style, color=line, label=what)
    latency.set_title("Epoch latency by slots: milliseconds")
    latency.legend(loc="lower right", ncols=2)
    for axes in (throughput, latency):
        axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel(
            f"slots, on {result['figures']['machine']['cores']} cores; epochs of {result['figures']['sizes']['rows']:,} rows"
        )
    throughput.yaxis.set_major_formatter(ticker.FuncFormatter(short))
    return made


def nexmark(result: Result) -> Figure:
    names, figures, ratios = queries(result), result["figures"], result["ratios"]
    made, (axes,) = figure(11, 4.6)
    speed = "events_per_s_and_core"
    for offset, who, fill, label in ((-0.2, OURS, BLUE, "floodplain"), (0.2, "spark", ORANGE, "Spark, RocksDB state")):
        having = [(at + offset, figures[name][who][speed]) for at, name in enumerate(names) if who in figures[name]]
        axes.bar([at for at, _ in having], [per_second for _, per_second in having], width=0.38, color=fill, label=label)
    ceilings = [figures[name]["duckdb_in_one_batch"][speed] for name in names]
    axes.scatter(range(len(names)), ceilings, marker="_", s=260, linewidths=2.5, color=DARK, label="DuckDB, all in one batch")
    for at, name in enumerate(names):
        highest = max(one[speed] for who, one in figures[name].items() if who in (OURS, "spark"))
        ratio = ratios.get(f"{name}_vs_spark")
        axes.annotate(
            "Spark\ncannot" if ratio is None else f"{ratio:.3g}×",
            (at, highest),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8 if ratio is None else 9,
            fontweight="normal" if ratio is None else "bold",
        )
    axes.set_yscale("log")
    axes.set_ylim(1e3, max(ceilings) * 12)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(short))
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("events per second and core, log scale")
    mean = ratios["nexmark_vs_spark"]
    axes.set_title(f"Nexmark: events per second and core. Above the bars, ours by Spark's: {mean:g}× in the geometric mean")
    axes.legend(loc="upper left", ncols=3)
    return made


def peers(result: Result) -> Figure:
    made, panels = figure(12, 0.5 * len(result["figures"]["count"]) + 1.4, 2)
    for axes, which, ratio, title in zip(
        panels, ("count", "join"), ("counter", "join"), ("Keyed count", "Interval join"), strict=True
    ):
        measured = result["figures"][which]
        notes = {name: times(result["ratios"].get(f"{ratio}_vs_{name}")) for name in measured}
        bars(axes, {name: one["rows_per_s"] for name, one in measured.items()}, notes, "rows per second")
        axes.set_xlim(right=max(one["rows_per_s"] for one in measured.values()) * 25)
        axes.set_title(f"{title}: rows per second on {result['figures']['machine']['cores']} cores")
    return made


def state_types(result: Result) -> Figure:
    made, panels = figure(12, 4.4, 2)
    rows = list(reversed(OPERATIONS))
    for axes, other, title in zip(panels, ("rocksdb", "dict"), ("RocksDB", "a Python dict"), strict=True):
        for kind, mark in MARKS.items():
            ratios = [result["ratios"][f"{kind}_{what}_vs_{other}"] for what in rows]
            axes.scatter(ratios, rows, marker=mark, s=42, label=kind, alpha=0.85, edgecolors="white", linewidths=0.6)
        axes.axvline(1, color=DARK, linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.set_xlabel("their time by ours, log scale: right of the line we are faster")
        axes.set_title(f"How many times our time {title} takes")
    panels[1].legend(title="state", loc="lower left")
    panels[1].tick_params(labelleft=False)
    return made


DRAWN: dict[str, Callable[[Result], Figure]] = {
    "counter": counter,
    "counter-slots": counter_slots,
    "process": process,
    "nexmark": nexmark,
    "peers": peers,
    "state-types": state_types,
}


def digest(bench: str) -> str:
    return hashlib.sha256((RESULTS / f"{bench}.json").read_bytes()).hexdigest()


def draw(folder: Path = FOLDER) -> list[Path]:
    """All pictures of the results that are there."""
    folder.mkdir(exist_ok=True)
    written = []
    for bench, result in results().items():
        for plot in PLOTS[bench]:
            with matplotlib.rc_context(STYLE):
                metadata: dict[str, Any] = {"Date": None, "Creator": None, "Source": f"{bench} {digest(bench)}"}
                DRAWN[plot](result).savefig(folder / f"{plot}.svg", metadata=metadata)
            written.append(folder / f"{plot}.svg")
    return written


def main() -> int:
    print(f"{len(draw())} plots in {FOLDER.relative_to(DOCS.parent)}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
