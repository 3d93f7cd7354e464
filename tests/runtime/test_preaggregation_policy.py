"""Measurements of epochs decide whether rows are pre-aggregated before the shuffle."""

from floodplain.operators.kernel.late_rows import LATE
from floodplain.operators.ranking.combiner import RankingCombiner
from floodplain.operators.ranking.latest import Latest
from floodplain.runtime.preaggregation_policy import Measured, combiner_of, pays
from floodplain.runtime.task import TaskReport


def combiner(when="auto", rows_per_group=4.0, count=1):
    return RankingCombiner(("k",), (), None, when, rows_per_group, count)


def test_rows_are_put_together_where_that_pays():
    hot, cold, skewed = Measured(10**6, 10**3, 1.0), Measured(10**6, 10**6, 1.0), Measured(10**6, 10**6, 3.0)
    few = Measured(100, 1, 1.0)
    assert [pays(combiner(), seen) for seen in (hot, cold, skewed, few, None)] == [True, False, True, False, False]
    assert pays(combiner(True), None) and not pays(combiner(False), hot)


def test_rows_come_as_they_are_where_late_ones_are_read():
    process = Latest("at", partial=True)
    assert combiner_of(process, ["main"], None) is not None
    assert combiner_of(process, ["main", LATE], None) is None
    assert combiner_of(Latest("at", partial=False), ["main"], None) is None


def decided(asked, epochs, *, keys, rows, pieces):
    """What is decided epoch after epoch, if each key has rows in so many places. ``pieces`` may change with the epoch."""
    last, found = None, []
    for epoch in range(epochs):
        on = pays(asked, last)
        here = pieces(epoch) if callable(pieces) else pieces
        received = int(asked.count * keys * here) if on else rows
        reports = [TaskReport(slot=slot, rows=rows // 2, keys=keys // 2, received=received // 2) for slot in range(2)]
        last = Measured.of(reports, asked if on else None, last)
        found.append(on)
    return found


def test_the_decision_does_not_change_from_epoch_to_epoch():
    """Pre-aggregated rows are more than keys, since several tasks read rows of a key."""
    last, top = combiner(rows_per_group=2.5), combiner(rows_per_group=30, count=10)
    assert decided(last, 9, keys=100_000, rows=400_000, pieces=1.5) == [False] + [True] * 8
    assert decided(last, 9, keys=100_000, rows=300_000, pieces=1.5) == [False, True] + [False] * 7
    assert decided(top, 9, keys=10_000, rows=700_000, pieces=2) == [False] + [True] * 8
    assert decided(top, 9, keys=10_000, rows=400_000, pieces=2) == [False, True] + [False] * 7
    assert decided(top, 9, keys=10_000, rows=150_000, pieces=1) == [False] * 9


def test_what_did_not_pay_is_tried_again_later():
    found = decided(combiner(rows_per_group=2.5), 60, keys=100_000, rows=300_000, pieces=lambda epoch: 1.5 if epoch < 5 else 1.0)
    assert found[:10] == [False, True] + [False] * 8 and found[40:] == [True] * 20


def test_how_large_a_row_is_stays_known_while_rows_are_put_together():
    apart = Measured.of([TaskReport(slot=0, rows=10, keys=5, received=10, received_bytes=800)], None, None)
    together = Measured.of([TaskReport(slot=0, rows=10, keys=5, received=5, received_bytes=900)], combiner(), apart)
    assert apart.row_bytes == together.row_bytes == 80
