"""Bugs by which hidden misses show, or are not hidden, or an error of a background read is lost or told twice."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "output_is_in_the_order_of_calls",
        "per_key",
        "order = np.argsort(number)",
        "order = np.arange(len(number))",
        ("hidden_misses::test_a_key_at_hand_is_processed_before_the_answer_for_another_comes",),
    ),
    Plant(
        "side_outputs_are_in_the_order_of_calls",
        "per_key",
        "    sides.sort()\n",
        "    sides.mark()\n",
        ("hidden_misses::test_timers_and_side_outputs_keep_the_order_of_keys",),
    ),
    Plant(
        "a_timer_gets_the_state_of_another_portion",
        "per_key",
        "            if caller is not attached:\n",
        "            if attached is None:\n",
        ("hidden_misses::test_timers_and_side_outputs_keep_the_order_of_keys",),
    ),
    Plant(
        "a_missing_key_passes_for_one_at_hand",
        "misses",
        "missing[number[by_chunk[chunk]]] = True",
        "missing[number[by_chunk[chunk]]] = False",
        ("hidden_misses::test_a_key_at_hand_is_processed_before_the_answer_for_another_comes",),
    ),
    Plant(
        "an_error_is_told_for_each_chunk",
        "read_ahead",
        "taken += [other for other, its in self._chunks.items() if its is state]",
        "taken += [other for other, its in self._chunks.items() if its is key]",
        ("read_ahead::test_an_error_is_raised_once_where_its_chunk_is_wanted",),
    ),
    Plant(
        "the_budget_of_reading_ahead_is_forgotten",
        "read_ahead",
        "return self._ahead_bytes + self._queue[0].decoded_bytes <= self._budget_bytes",
        "return True",
        ("read_ahead::test_what_is_beyond_the_budget_waits_until_something_is_used",),
    ),
)
