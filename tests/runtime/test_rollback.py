"""A pipeline goes back: state, timers, time and input are those of then, and what is given again comes out again."""

from floodplain.operators.kernel.process import KeyedProcess
from floodplain.state.descriptors import Value
from floodplain.testing.pipeline_kit import PipelineKit

ROWS = "user string, at long"


class Counts(KeyedProcess):
    output = "user string, n long"

    n = Value("long", default=0)

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(list(rows)))
        ctx.timer(self.n.get() * 1000)
        yield key.user, self.n.get()

    def on_timer(self, key, at, ctx):
        yield key.user, -self.n.get()


def counts(stream):
    return stream.watermark("at", "0 seconds").key_by("user").process(Counts(), name="counts").write("memory")


def rows(*users: str) -> list[dict[str, object]]:
    return [{"user": user, "at": 90_000} for user in users]


def test_a_pipeline_goes_on_from_the_epoch_it_went_back_to():
    kit = PipelineKit(counts, rows=ROWS)
    kit.epoch(rows("a"), watermark_ms=1)
    first = kit.epoch(rows("a", "b"), watermark_ms=2)["output"]
    kit.epoch(rows("c"), watermark_ms=5000)
    kit.rollback(1)
    assert kit.store.head.watermarks["event_time"] == 1
    assert [(row["user"], row["n"]) for row in kit.state("counts")] == [("a", 1)]
    assert kit.epoch(rows("a", "b"), watermark_ms=2)["output"] == first
    published = kit.sinks["output"].epochs
    assert sorted(published) == [1, 2, 3, 4, 5], "what was published stays, and comes again under another number"
    assert published[2].to_pylist() == published[5].to_pylist() == first and not len(published[4])
    assert kit.tick(now_ms=1, watermark_ms=1500), "the timers of then wait again"
    assert kit.sinks["output"].epochs[6].to_pylist() == [{"user": "a", "n": -2}, {"user": "b", "n": -1}]


def test_it_goes_back_and_forth():
    kit = PipelineKit(counts, rows=ROWS)
    for users in ("a", "b", "a"):
        kit.epoch(rows(users), watermark_ms=0)
    before = kit.state("counts")
    kit.rollback(1)
    kit.rollback(3)
    assert kit.state("counts") == before
    assert kit.epoch(rows("a"), watermark_ms=0)["output"] == [{"user": "a", "n": 3}]
