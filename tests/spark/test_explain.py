"""Pipelines explained: the text word by word, the pictures by what holds for any of them."""

import re
from dataclasses import replace
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodplain.errors import BadInput
from floodplain.eventtime.options import ingestion_time
from floodplain.spark.explain import About, Arrow, Box, Picture
from floodplain.spark.explain_layout import laid_out
from floodplain.spark.kit import PipelineKit
from floodplain.spark.plan import Union
from tests.spark.processes import ByCount, Count, Priced, Tally

ROWS = "user string, amount long, ts timestamp"
TWO = {"a": ROWS, "b": ROWS}


def upper(frame):
    return frame


def branching(stream):
    timed = stream.watermark("ts", "4 seconds", idle="1 minute", sources={"a": 1000})
    tally = timed.select("user", "amount", "ts").key_by("user").process(Tally())
    by_count = tally.key_by("n").process(ByCount())
    sides = [timed.source(name) for name in TWO]
    joined = replace(timed, node=Union(tuple(side.node for side in sides))).key_by("user").process(Count())
    shouted = by_count.transform(upper).key_by("users").process(ByCount(), name="again")
    outputs = [by_count, joined, shouted, timed.transform(upper)]
    written = tally.side("fives").write("memory", name="fives")
    for number, stream_ in enumerate(outputs):
        written = written.also(stream_.write("memory", name=f"out_{number}"))
    return written


TEXT = """\
== Logical dataflow ==
(1)  input    input      a, b · event time ts · watermark: min of sources · a: 1000 rows behind · b: 4 s behind · idle after 1 min
(2)  step     select     from (1) · user, amount, ts
(3)  operator tally      from (2) · Tally · by user
(4)  operator by_count   from (3) · ByCount · by n
(5)  step     select     from (1) · rows of a · user, amount, ts
(6)  step     select     from (1) · rows of b · user, amount, ts
(7)  step     union      from (5), (6)
(8)  operator count      from (7) · Count · by user
(9)  step     transform  from (4) · upper
(10) operator again      from (9) · ByCount · by users
(11) step     transform  from (1) · upper
(12) sink     fives      from (3) fives · memory
(13) sink     out_0      from (4) · memory
(14) sink     out_1      from (8) · memory
(15) sink     out_2      from (10) · memory
(16) sink     out_3      from (11) · memory

== Physical plan ==
each epoch: as many slots as tasks run at once, until rescaled
job 1: tally
  reads (2), exchange: shuffle by user
    (2) select reads (1), in the same Spark job
  state n: Value
  stages output for (4) staged by n, (12) fives
job 2: by_count
  reads (3), no exchange: staged by n, each task reads the rows of its slot
  state users: List
  stages output for (9), (13)
job 3: count
  reads (7), exchange: shuffle by user
    (7) union reads (5), in the same Spark job
    (5) select reads (1), in the same Spark job
    (7) union reads (6), in the same Spark job
    (6) select reads (1), in the same Spark job
  states n: Value, total: Value
  stages output for (14)
job 4: again
  reads (9), exchange: shuffle by users
    (9) transform reads (4), reads staged files, whole
  state users: List
  stages output for (15)
job 5: out_3
  stages the rows of (11) as they are
    (11) transform reads (1), in the same Spark job
commit: one edit with state, input position, watermarks and staged output
publish: (12) fives, (13) out_0, (14) out_1, (15) out_2, (16) out_3
"""


def explained(build, rows, form="text"):
    """What a pipeline says of itself before it runs; and the kit that runs it."""
    found = []

    def told(stream, **more):
        output = build(stream, **more)
        found.append(output.explain(form))
        return output

    kit = PipelineKit(told, rows=rows, transforms=[lambda rows: rows] * 2 if build is branching else ())
    return found[0], kit


def test_the_text_before_it_runs():
    assert explained(branching, TWO)[0] == TEXT


def test_a_running_pipeline_tells_slots_tables_and_columns():
    _, kit = explained(branching, TWO)
    kit.rescale(3)
    kit.epoch()
    text = kit.explain()
    assert "each epoch: 3 slots over 16 key groups" in text and "state at memory://kit" in text
    assert "  tables count, count__event_timers, count__processing_timers\n" in text
    assert "(3)  operator tally      from (2) · Tally · by user · event time ts\n" in text
    assert "from (8) · captured · user string, n int64, total int64\n" in text


def test_broadcasts_late_rows_and_times():
    def build(stream, prices):
        priced = (
            stream.watermark(ingestion_time("came")).key_by("user").process(Priced(), broadcast=prices, on_error="dead_letter")
        )
        assert "sink" not in priced.explain() and "operator priced" in priced.explain()
        return priced.late().write("memory")

    kit = PipelineKit(build, rows="user string, amount long", broadcasts={"prices": "item string, price long"})
    text = kit.explain()
    assert "event time came · watermark: processing time" in text
    assert "reads (2), collected and sent to all tasks" in text and "on_error dead_letter" in text
    assert "from (3) late · captured · user string, amount int64, came timestamp[us, tz=UTC]" in text


def test_spark_watermark_and_unknown_forms():
    text, kit = explained(
        lambda stream: stream.watermark("ts", "90 seconds").key_by("user").process(Count()).write("memory"), ROWS
    )
    assert "event time ts · watermark: Spark's, 90 s behind" in text
    with pytest.raises(BadInput, match=r"format='png'.*'text', 'mermaid', 'svg'"):
        kit.explain("png")


def test_secrets_of_sinks_are_not_told(tmp_path):
    options = {"path": str(tmp_path / "out"), "storage_options": {"secret": "hush"}}
    text, _ = explained(lambda stream: stream.key_by("user").process(Count()).write("parquet", **options), ROWS)
    assert "hush" not in text and "parquet " in text


def test_mermaid_has_every_step_and_arrow():
    chart, _ = explained(branching, TWO, "mermaid")
    lines = chart.splitlines()
    assert lines[0] == "flowchart TD"
    assert [len(re.findall(pattern, chart)) for pattern in ("==>", r"-\.->", "-->")] == [3, 1, 12]
    assert '  n1 ==>|"shuffle by user"| n2' in lines and '  n2 -.->|"staged by n"| n3' in lines
    assert all(line.count('"') % 2 == 0 for line in lines)


def test_the_picture_is_well_formed_and_has_every_word():
    picture, _ = explained(branching, TWO, "svg")
    words = [node.text for node in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"tally", "by_count", "union", "shuffle by user", "staged by n", "staged for slots, no shuffle"} <= set(words)


@st.composite
def pictures(draw):
    boxes = [Box("step", f"b{number}") for number in range(draw(st.integers(1, 12)))]
    pairs = [(start, end) for start, end in combinations(range(len(boxes)), 2)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=15)) if pairs else []
    return Picture(tuple(boxes), tuple(Arrow(start, end, "spark") for start, end in chosen), About())


@settings(deadline=None, max_examples=60)
@given(pictures(), st.integers(20, 300))
def test_no_two_boxes_overlap_and_arrows_go_down(drawn, width):
    layout = laid_out(drawn, [(width + 7 * number, 20 + number) for number in range(len(drawn.boxes))])
    for one, other in combinations(layout.boxes, 2):
        apart = abs(one.x - other.x) >= (one.width + other.width) / 2
        assert apart or one.y + one.height <= other.y or other.y + other.height <= one.y
    assert all(spot.x - spot.width / 2 >= -1e-6 and spot.x + spot.width / 2 <= layout.width + 1e-6 for spot in layout.boxes)
    for way in layout.ways:
        assert all(upper.y + upper.height < lower.y for upper, lower in pairwise(way))


def test_filters_and_made_columns_are_told():
    told = []

    def build(stream):
        output = stream.where("amount = 1").with_column("twice", "amount").write("memory")
        told.append(output.explain())
        return output

    PipelineKit(build, rows="user string, amount long")
    assert "amount = 1" in told[0]
    assert "twice = amount" in told[0]
