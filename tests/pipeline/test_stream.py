"""What is refused where a pipeline is described, before anything starts."""

import pyarrow as pa
import pytest

from floodplain.errors import BadInput, BadName
from floodplain.pipeline.stream import Output, Stream
from floodplain.plan.nodes import Input
from floodplain.testing.pipeline_kit import Columns, PipelineKit
from tests.processes import LastSeen, Sightings

ROWS = "user string, at long"
ONE_STREAM = r"have different inputs: begin with one fp\.stream\(a=…, b=…\)"
ONE_WATERMARK = "different watermarks: call watermark once, before they branch"


def another(stream: Stream) -> Stream:
    """What ``fp.stream`` gives for other rows with the same columns."""
    return Stream(stream.runtime, {"": Columns(pa.schema({"user": pa.string(), "at": pa.int64()}))}, Input(), {})


def counted(stream: Stream, name: str) -> Output:
    return stream.key_by("user").process(Sightings(), name=name).write("memory", name=name)


def test_outputs_of_two_inputs_are_not_one_pipeline():
    """The second would be given the rows of the first."""
    with pytest.raises(BadInput, match=f"also: .*{ONE_STREAM}"):
        PipelineKit(lambda stream: counted(stream, "clicks").also(counted(another(stream), "orders")), rows=ROWS)
    with pytest.raises(BadInput, match=f"join: .*{ONE_STREAM}"):
        PipelineKit(lambda stream: stream.join(another(stream).select(who="user"), {"user": "who"}).write("memory"), rows=ROWS)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("at", "0 seconds", {}), None),
        (("at", "0 seconds", {}), ("at", "1 second", {})),
        (("at", "0 seconds", {"idle": "1 minute"}), None),
        (("at", "0 seconds", {"idle": "1 minute"}), ("at", "0 seconds", {"idle": "2 minutes"})),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_branches_with_different_watermarks_are_not_one_pipeline(one, two, turned):
    """The watermark of one would hold for both, and drop rows of the other."""

    def branches(stream: Stream) -> list[Stream]:
        marked = [stream if given is None else stream.watermark(given[0], given[1], **given[2]) for given in (one, two)]
        return marked[::-1] if turned else marked

    def also(stream: Stream) -> Output:
        left, right = branches(stream)
        return counted(left, "left").also(counted(right, "right"))

    def join(stream: Stream) -> Output:
        left, right = branches(stream)
        return left.join(right.select(who="user"), {"user": "who"}).write("memory")

    for build in (also, join):
        with pytest.raises(BadInput, match=f"{build.__name__}: .*{ONE_WATERMARK}"):
            PipelineKit(build, rows=ROWS)


@pytest.mark.parametrize("options", [{}, {"idle": "1 minute"}])
def test_branches_behind_one_watermark_are_one_pipeline(options):
    def build(stream: Stream) -> Output:
        marked = stream.watermark("at", "0 seconds", **options)
        seen = marked.key_by("user").process(LastSeen()).write("memory", name="seen")
        return counted(marked.where("at > 1"), "counted").also(seen)

    out = PipelineKit(build, rows=ROWS).epoch([{"user": "a", "at": 1}, {"user": "b", "at": 2}])
    assert out == {"counted": [{"user": "b", "n": 1}], "seen": []}


@pytest.mark.parametrize("name", ["a/b", "../../evil", "My Sink", "a-b", "", "x" * 65, None])
def test_the_name_of_a_sink_is_checked_where_it_is_given(name):
    """It becomes part of file names once an epoch is committed."""

    def build(stream: Stream) -> Output:
        with pytest.raises(BadName, match=r"sink name .* is not allowed"):
            stream.write("memory", name=name)
        return stream.write("memory", name="x" * 64)

    PipelineKit(build, rows=ROWS)


def test_sinks_put_together_have_names_of_their_own():
    def build(stream: Stream) -> Output:
        one, two = (stream.key_by("user").process(Sightings(), name=name) for name in ("one", "two"))
        others = one.write("memory").also(two.write("memory", name="one"))
        return two.write("memory").also(others).also(one.write("memory"))

    assert list(PipelineKit(build, rows=ROWS).epoch([{"user": "a"}])) == ["output", "one", "two", "one_3"]
