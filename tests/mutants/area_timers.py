"""Bugs by which a timer fires twice, early or not at all, and state ends at the wrong time."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "a_row_lives_a_millisecond_longer",
        "merge",
        "ended = ends <= _judged_at(ends, first, schema.ttl_ms, rules.now_ms)",
        "ended = ends < _judged_at(ends, first, schema.ttl_ms, rules.now_ms)",
        ("merges::test_rows_end_at_their_time_and_not_before",),
    ),
    Plant(
        "a_value_lives_a_millisecond_longer",
        "merge",
        "ended = settled & (layout.expiries(rows, layout.expires_column(field)) <= rules.now_ms)",
        "ended = settled & (layout.expiries(rows, layout.expires_column(field)) < rules.now_ms)",
        ("ttl::test_a_value_ends_and_its_row_stays",),
    ),
    Plant(
        "what_lies_below_a_merge_is_judged_now",
        "merge",
        """    judged[1:] = ends[:-1] - ttl_ms
    judged[first] = now_ms
""",
        """    judged[1:] = np.maximum(ends[:-1] - ttl_ms, now_ms)
    judged[first] = now_ms
""",
        ("merges::test_below_a_merge_a_row_ends_by_the_time_of_the_merge",),
    ),
    Plant(
        "a_run_goes_when_its_first_row_has_ended",
        "readers",
        "while refs and 0 < refs[-1].last_expiry_ms <= now_ms:",
        "while refs and 0 < refs[-1].first_expiry_ms <= now_ms:",
        ("ttl::test_a_run_counts_until_its_last_row_has_ended",),
    ),
    Plant(
        "a_timer_at_the_watermark_does_not_fire",
        "keyed",
        "times=(-(1 << 63), self._until[name] + 1)))",
        "times=(-(1 << 63), self._until[name])))",
        ("kit::test_time_is_an_argument",),
    ),
    Plant(
        "a_timer_at_the_watermark_starts_no_epoch",
        "epochs",
        "if next(snapshot.stored(timers.table).scan(times=(-(1 << 63), until_ms + 1)), None) is not None:",
        "if next(snapshot.stored(timers.table).scan(times=(-(1 << 63), until_ms)), None) is not None:",
        ("kit::test_the_watermark_may_move_when_no_data_comes",),
    ),
    Plant(
        "a_timer_fires_in_every_epoch",
        "timers",
        """                self._changed.setdefault(number, {})[at_ms] = False
                yield number, at_ms
""",
        """                yield number, at_ms
                self._changed.setdefault(number, {}).setdefault(at_ms, True)
""",
        ("timed::test_a_periodic_one_catches_up_with_the_watermark",),
    ),
    Plant(
        "a_timer_that_is_set_for_the_watermark_is_late",
        "timers",
        "if self._fired_ms < at_ms <= self.until_ms:",
        "if self._fired_ms < at_ms < self.until_ms:",
        ("timed::test_a_periodic_one_catches_up_with_the_watermark",),
    ),
    Plant(
        "a_timer_that_was_deleted_fires",
        "timers",
        "if timer != last and self._changed.get(number, {}).get(at_ms, timer in pending):",
        "if timer != last and (timer in pending or self._changed.get(number, {}).get(at_ms, False)):",
        ("timed::test_one_that_is_deleted_before_it_is_due_does_not_fire",),
    ),
    Plant(
        "rows_are_late_by_the_watermark_of_their_own_epoch",
        "epochs",
        "late_ms=before.get(EVENT_TIME, NONE_MS),",
        "late_ms=watermark_ms,",
        ("watermarked::test_late_is_judged_by_the_watermark_of_the_epoch_before",),
    ),
    Plant(
        "processing_time_goes_back_with_the_clock",
        "store",
        "if now_ms is None else Moment(max(now_ms, before))",
        "if now_ms is None else Moment(now_ms or before)",
        ("ttl::test_processing_time_never_goes_back",),
    ),
    Plant(
        "expired_rows_no_longer_hide_older_ones",
        "readers",
        """            while refs and 0 < refs[-1].last_expiry_ms <= now_ms:
                refs.pop()
""",
        """            refs = [ref for ref in refs if not 0 < ref.last_expiry_ms <= now_ms]
""",
        ("ttl::test_what_ended_does_not_come_back_when_compacted_in_part",),
    ),
)
