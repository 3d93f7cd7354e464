"""Bugs in counting what tiers are asked for, and in what the state keeps of it."""

from tests.mutants.plant import Plant

_REQUESTS = "tier_use::test_each_request_that_the_store_gets_is_counted_once_for_who_made_it"

PLANTS = (
    Plant(
        "a_background_thread_counts_for_nobody",
        "task",
        "self._pool.submit(carried_tally(write))",
        "self._pool.submit(write)",
        ("tier_use::test_workers_return_what_they_asked_for",),
    ),
    Plant(
        "counts_are_recorded_again",
        "epochs",
        "        )\n        self._unrecorded.take()\n",
        "        )\n",
        (f"{_REQUESTS}[False-counting]",),
    ),
    Plant(
        "ranges_count_as_one_request",
        "objects",
        'self._asking(f"reading {name}", GET, requests=len(wanted))',
        'self._asking(f"reading {name}", GET)',
        ("objects::test_near_ranges_travel_together",),
    ),
    Plant(
        "lists_count_as_gets",
        "objects",
        'self._asking(f"listing {prefix!r}", LIST)',
        'self._asking(f"listing {prefix!r}", GET)',
        (f"{_REQUESTS}[False-counting]",),
    ),
    Plant(
        "a_rollback_forgets_what_was_paid",
        "manifest",
        "        restored=edit.position,\n        left=left,",
        "        restored=edit.position,\n        used={},\n        left=left,",
        ("tier_use::test_a_restart_and_a_rollback_keep_what_was_asked_for",),
    ),
    Plant(
        "reads_of_operators_become_fewer_with_longer_epochs",
        "savings",
        "fixed = spent.prices.of_uses(spent.uses) - spent.prices.of(_reads(_operators(spent)))",
        "fixed = spent.prices.of_uses(spent.uses)",
        ("savings::test_reads_of_operators_come_with_rows_and_not_with_epochs",),
    ),
)
