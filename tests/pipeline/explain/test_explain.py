"""Pipelines explained: the text word by word, the pictures by what holds for any of them."""

import re
from dataclasses import replace
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodplain as fp
from floodplain.errors import BadInput
from floodplain.eventtime.options import ingestion_time
from floodplain.pipeline.explain.graph import About, Arrow, Box, Graph
from floodplain.pipeline.explain.layout import laid_out
from floodplain.pipeline.stream import Stream
from floodplain.plan.nodes import Input, Union
from floodplain.testing.pipeline_kit import Columns, PipelineKit
from tests.processes import ByCount, Count, Priced, Tally

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
each epoch: as many slots as tasks run at once, until rescaled · 3 exchanges
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
  stages the rows of (11) unchanged
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
    return Graph(tuple(boxes), tuple(Arrow(start, end, "spark") for start, end in chosen), About())


@settings(deadline=None, max_examples=60)
@given(pictures(), st.integers(20, 300))
def test_no_two_boxes_overlap_and_arrows_go_down(drawn, width):
    layout = laid_out(drawn, [(width + 7 * number, 20 + number) for number in range(len(drawn.boxes))])
    for one, other in combinations(layout.boxes, 2):
        apart = abs(one.x - other.x) >= (one.width + other.width) / 2
        assert apart or one.y + one.height <= other.y or other.y + other.height <= one.y
    assert all(spot.x - spot.width / 2 >= -1e-6 and spot.x + spot.width / 2 <= layout.width + 1e-6 for spot in layout.boxes)
    for way in layout.routes:
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


ADS = {"shown": "ad long, at timestamp, width int", "clicks": "id long, at timestamp, user string"}


def described(columns="user string, amount long, ts timestamp"):
    """A stream that is only described: no expression is looked at."""
    names = [name for name, _ in map(str.split, columns.split(","))]
    rows = Columns(pa.schema([(name, pa.string()) for name in names]))
    return Stream(None, {"": rows}, Input(), {}).watermark("ts", "4 seconds")


def windows(rows):
    sliding = rows.key_by("user").window(
        fp.sliding("10 seconds", "2 seconds"), lateness="5 seconds", early=fp.every("1 second"), firing="retracting"
    )
    return sliding.agg(n=fp.count(), high=fp.max("amount * 2"), newest=fp.last("amount", where="amount > 3"))


def joined(stream):
    timed = stream.watermark("at", "4 seconds")
    sides = timed.source("shown"), timed.source("clicks")
    return sides[0].join(sides[1], {"ad": "id"}, "left", within=("-5 seconds", "20 seconds"), suffixes=("", "_click"))


WINDOW = """\
== Logical dataflow ==
(1) input    input    event time ts · watermark: Spark's, 4 s behind
(2) step     select   from (1) · user, ts, amount * 2, amount > 3, amount
(3) operator windows  from (2) · sliding windows of 10 s every 2 s · n = count() · high = max(amount * 2) · \
newest = max_by(amount, ts) where amount > 3 · lateness 5 s · early results every 1 s of processing time · retracting · \
by user · event time ts

== Physical plan ==
each epoch: as many slots as tasks run at once, until rescaled · 1 exchange, up to 1 more for pre-aggregation
job 1: windows
  reads (2), exchange: shuffle by user
    (2) select reads (1), in the same Spark job
  pre-aggregation before the exchange: auto
  tables are known once it runs
commit: one edit with state, input position, watermarks and staged output
"""

JOIN_AND_TOP = """\
== Logical dataflow ==
(1) input    input   shown, clicks · event time at · watermark: Spark's, 4 s behind
(2) step     select  from (1) · rows of shown · ad, at, width
(3) step     select  from (2) · left side · ad, at, all other columns
(4) step     select  from (1) · rows of clicks · id, at, user
(5) step     select  from (4) · right side · ad = id, at, all other columns
(6) step     union   from (3), (5)
(7) operator join    from (6) · left join · right time - left time from -5 s to 20 s · by ad · event time at
(8) operator top     from (7) · top 3 by width desc, at · mode update · by user · event time at
(9) sink     output  from (8) · captured · ad int64, at timestamp[us, tz=UTC], width int32, at_click timestamp[u…

== Physical plan ==
state at memory://kit
each epoch: 2 slots over 16 key groups · 1 exchange
job 1: join
  reads (6), exchange: shuffle by ad
    (6) union reads (3), in the same Spark job
    (3) select reads (2), in the same Spark job
    (2) select reads (1), in the same Spark job
    (6) union reads (5), in the same Spark job
    (5) select reads (4), in the same Spark job
    (4) select reads (1), in the same Spark job
  tables join__event_timers, join__left, join__processing_timers, join__right
  stages output for (8) staged by user
job 2: top
  reads (7), no exchange: staged by user, each task reads the rows of its slot
  pre-aggregation before the exchange: off (no exchange)
  tables top, top__event_timers, top__processing_timers
  stages output for (9)
commit: one edit with state, input position, watermarks and staged output
publish: (9) output
"""

LOOKUP = """\
== Logical dataflow ==
(1) input    input   event time ts · watermark: Spark's, 4 s behind
(2) operator lookup  from (1) · inner lookup in levels · state at s3://there · as of tag good · by user · event time ts
(3) operator dedup   from (2) · first row by event time · within 1 h · by level · event time ts

== Physical plan ==
each epoch: as many slots as tasks run at once, until rescaled · 1 exchange
job 1: lookup
  reads (1), exchange: shuffle by user
  tables are known once it runs
  stages output for (3) staged by level
job 2: dedup
  reads (2), no exchange: staged by level, each task reads the rows of its slot
  tables are known once it runs
commit: one edit with state, input position, watermarks and staged output
"""


def test_a_window_is_told_with_its_aggregates_and_when_it_fires():
    assert windows(described()).explain() == WINDOW


def test_a_join_and_what_follows_are_told_without_names_of_ours():
    text = explained(lambda stream: joined(stream).key_by("user").top(3, "width desc, at").write("memory"), ADS)[1].explain()
    assert text == JOIN_AND_TOP


def test_a_lookup_and_deduplication_are_told():
    looked = described().lookup("s3://there", "levels", {"user": "name"}, "inner", at="good", options={"secret": "hush"})
    assert looked.dedup("level", within="1 hour").explain() == LOOKUP


@pytest.mark.parametrize(
    ("build", "fact"),
    [
        (lambda rows: rows.window(fp.session("10 seconds")).agg(n=fp.count()), "sessions with a gap of 10 s"),
        (
            lambda rows: rows.window(fp.count_window(5, 2)).agg(n=fp.count()),
            "windows of 5 rows every 2 · n = count() · as one group",
        ),
        (lambda rows: rows.window(fp.global_window(), early=fp.every_rows(3)).agg(n=fp.count()), "early results every 3 rows"),
        (
            lambda rows: rows.window(fp.tumbling("1 minute", offset="1 s")).agg(x=fp.top_k("v", 3)),
            "1 min, offset 1 s · x = top_k(v, k=3)",
        ),
        (lambda rows: rows.key_by("user").agg(n=fp.count(), mode="retract"), "of all rows so far · n = count() · mode retract"),
        (lambda rows: rows.key_by("user").last(ttl="1 day"), "last row by event time · forgotten after 1 day · mode update"),
        (
            lambda rows: rows.key_by("user").top(1, "amount", until="ts", mode="append"),
            "top 1 by amount · until ts · mode append",
        ),
        (lambda rows: rows.key_by("user").pivot("kind", ["a", "b"], "amount"), "amount by kind as a, b · last by event time"),
        (
            lambda rows: rows.join(rows.select(user="user", x="ts"), "user", ttl="1 day", times=("ts", "x")),
            "rows wait for 1 day of processing",
        ),
        (
            lambda rows: rows.join(rows, "user", as_of=True, suffixes=("", "_2")),
            "inner join · with the newest right row that is not later",
        ),
        (
            lambda rows: rows.join(rows, "user", "semi", window=fp.tumbling("1 s")),
            "semi join · both in one of tumbling windows of 1 s",
        ),
    ],
)
def test_each_operator_is_told_in_words(build, fact):
    text = build(described()).explain()
    assert fact in text
    assert not re.search(r"(?<!\w)_\w", text), "no name of ours"


@pytest.mark.parametrize(
    ("build", "said", "exchanges"),
    [
        (lambda key: key.agg(n=fp.count(), partial=True), "on, by Spark with an exchange of its own", "2 exchanges"),
        (
            lambda key: key.agg(n=fp.count()),
            "auto (not in the next epoch), by Spark with an exchange of its own",
            "1 exchange, up to 1 more",
        ),
        (lambda key: key.agg(n=fp.count(), partial=False), "off", "1 exchange"),
        (lambda key: key.agg(n=fp.count(), in_order=True), "off (rows come in order)", "1 exchange"),
        (lambda key: key.last(partial=True), "on, in the tasks that read the rows", "1 exchange"),
        (lambda key: key.last(ttl="1 day"), "off", "1 exchange"),
        (lambda key: key.window(fp.session("1 second")).agg(n=fp.count()), "off", "1 exchange"),
    ],
)
def test_rows_that_are_put_together_are_told_with_their_exchange(build, said, exchanges):
    kit = PipelineKit(lambda stream: build(stream.watermark("ts", "0 seconds").key_by("user")).write("memory"), rows=ROWS)
    lines = kit.explain().splitlines()
    assert f"  pre-aggregation before the exchange: {said}" in lines
    (counted,) = [line for line in lines if line.startswith("each epoch:")]
    assert counted.partition(" · ")[2].startswith(exchanges)
    assert said.partition(" (")[0] in kit.explain("mermaid") and said.partition(" (")[0] in kit.explain("svg")


def test_late_rows_that_are_read_keep_rows_apart():
    def build(stream):
        counts = stream.watermark("ts", "0 seconds").key_by("user").window(fp.tumbling("1 second")).agg(n=fp.count())
        return counts.write("memory").also(counts.late().write("memory", name="late"))

    text = PipelineKit(build, rows=ROWS).explain()
    assert "pre-aggregation before the exchange: off (late rows are read)" in text
    assert "select   from (1) · user, ts, the whole row" in text
