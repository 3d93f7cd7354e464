"""``explain`` as an SVG picture."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

from floodplain.pipeline.explain.graph import Arrow, Box, Graph
from floodplain.pipeline.explain.layout import Layout, Spot, laid_out

_CHAR, _LINE, _PAD, _MARGIN = 6.7, 16.0, 10.0, 16.0
_FILLS = {"input": "#e8f0fb", "step": "#f4f4f4", "operator": "#fdf3df", "sink": "#e6f4ea"}
_STROKES = {"input": "#4a78b5", "step": "#8a8a8a", "operator": "#b7791f", "sink": "#3c8d57"}
_FLOWS = {
    "spark": ("#777777", "1.4", ""),
    "exchange": ("#c2410c", "2.6", ""),
    "staged": ("#3c8d57", "1.8", "6 4"),
    "files": ("#777777", "1.4", "2 3"),
    "broadcast": ("#4a78b5", "1.4", "8 3 2 3"),
}
_LEGEND = {
    "exchange": "shuffle",
    "staged": "staged for slots, no shuffle",
    "spark": "same Spark job",
    "files": "staged files",
    "broadcast": "broadcast",
}
_WORKERS_LEGEND = {**_LEGEND, "exchange": "to workers", "staged": "kept for slots"}
_FONT = 'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="11"'


def svg(graph: Graph) -> str:
    layout = laid_out(graph, [_size(box) for box in graph.boxes])
    legend = _WORKERS_LEGEND if graph.about.input_ways else _LEGEND
    used = {flow: meaning for flow, meaning in legend.items() if any(arrow.flow == flow for arrow in graph.arrows)}
    legend_width = sum(_CHAR * len(meaning) + 56 for meaning in used.values())
    width = max(layout.width, legend_width) + 2 * _MARGIN
    height = layout.height + 2 * _MARGIN + (30 if used else 0)
    body = [_route(arrow, layout.routes[number]) for number, arrow in enumerate(graph.arrows)]
    body += [_box(box, layout.boxes[number]) for number, box in enumerate(graph.boxes)]
    body += [_label(arrow, layout.routes[number]) for number, arrow in enumerate(graph.arrows) if arrow.label]
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}" {_FONT}>',
            f'<rect {size} fill="#ffffff"/>',
            f'<g transform="translate({_MARGIN:.0f},{_MARGIN:.0f})">',
            *body,
            *_legend(used, layout),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _size(box: Box) -> tuple[float, float]:
    lines = box.all_lines
    widest = max(len(box.title) * 1.1, *(len(line) for line in lines), 6) if lines else max(len(box.title) * 1.1, 6)
    return widest * _CHAR + 2 * _PAD, (len(lines) + 1) * _LINE + 2 * _PAD - 4


def _box(box: Box, spot: Spot) -> str:
    left, radius = spot.x - spot.width / 2, {"operator": 3, "sink": 14}.get(box.kind, 9)
    place = f'x="{left:.1f}" y="{spot.y:.1f}" width="{spot.width:.1f}" height="{spot.height:.1f}"'
    made = [f'<rect {place} rx="{radius}" fill="{_FILLS[box.kind]}" stroke="{_STROKES[box.kind]}"/>']
    texts = [(box.title, 'font-weight="bold"'), *((line, "") for line in box.lines)]
    texts += [(line, 'fill="#666666"') for line in box.all_lines[len(box.lines) :]]
    for number, (text, style) in enumerate(texts):
        y = spot.y + _PAD + 10 + number * _LINE
        made.append(f'<text x="{left + _PAD:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>')
    return "\n".join(made)


def _route(arrow: Arrow, route: tuple[Spot, ...]) -> str:
    colour, weight, dashes = _FLOWS[arrow.flow]
    x, y = route[0].x, route[0].y + route[0].height
    path = [f"M{x:.1f},{y:.1f}"]
    for spot in route[1:]:
        half = (spot.y - y) / 2
        path.append(f"C{x:.1f},{y + half:.1f} {spot.x:.1f},{spot.y - half:.1f} {spot.x:.1f},{spot.y:.1f}")
        x, y = spot.x, spot.y
    tip = f"M{x - 4:.1f},{y - 7:.1f} L{x:.1f},{y:.1f} L{x + 4:.1f},{y - 7:.1f}"
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    line = f'fill="none" stroke="{colour}" stroke-width="{weight}"'
    return f'<path d="{" ".join(path)}" {line}{dash}/>\n<path d="{tip}" {line}/>'


def _label(arrow: Arrow, route: tuple[Spot, ...]) -> str:
    upper, lower = route[-2], route[-1]
    x, y = (upper.x + lower.x) / 2, (upper.y + upper.height + lower.y) / 2
    width = len(arrow.label) * _CHAR + 8
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="16" fill="#ffffff" opacity="0.9"/>\n'
        f'<text x="{x:.1f}" y="{y + 3:.1f}" text-anchor="middle" fill="{_FLOWS[arrow.flow][0]}">{escape(arrow.label)}</text>'
    )


def _legend(used: Mapping[str, str], layout: Layout) -> list[str]:
    made, x, y = [], 0.0, layout.height + 26
    for flow, meaning in used.items():
        colour, weight, dashes = _FLOWS[flow]
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        made.append(
            f'<path d="M{x:.1f},{y - 4:.1f} h28" fill="none" stroke="{colour}" stroke-width="{weight}"{dash}/>\n'
            f'<text x="{x + 34:.1f}" y="{y:.1f}" fill="#555555">{meaning}</text>'
        )
        x += _CHAR * len(meaning) + 56
    return made
