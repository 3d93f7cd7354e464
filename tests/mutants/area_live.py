"""Bugs by which a pipeline that changes while it runs is half the one and half the other, or by which a decision is lost."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "the_new_plan_runs_before_its_edit",
        "live_update",
        "    epoch = commit_migration(runner.writer, migration, [NoteChange(NOTE), *tags, *also])\n",
        """    runner.bound, runner.front = bound, wanted.front
    epoch = commit_migration(runner.writer, migration, [NoteChange(NOTE), *tags, *also])
""",
        ("live_update::test_what_a_start_refuses_is_refused_in_the_same_words_and_the_running_one_goes_on[a failing evolve]",),
    ),
    Plant(
        "the_tag_is_left_out_of_the_edit",
        "live_update",
        "[NoteChange(NOTE), *tags, *also])",
        "[NoteChange(NOTE), *also, *tags[1:]])",
        (
            "live_update::test_the_epoch_before_is_kept_under_a_tag",
            "live_update::test_a_crash_before_the_edit_leaves_the_old_state_and_one_after_it_the_new[evolve]",
        ),
    ),
    Plant(
        "output_of_the_plan_that_goes_is_not_published",
        "live_update",
        """    runner.publisher.publish()
    runner.publisher.record()""",
        """    runner.publisher.record()""",
        ("live_update::test_output_that_a_sink_refused_is_published_by_the_pipeline_that_made_it",),
    ),
    Plant(
        "resources_of_old_code_stay",
        "resources",
        "(opened.token, opened.since) != (token, operator.since)",
        "opened.token != token",
        ("live_update::test_what_open_returned_is_that_of_the_new_code",),
    ),
    Plant(
        "rows_of_a_step_are_taken_for_those_before_it",
        "same_steps",
        "    return not upstream & read\n",
        "    return not upstream & read & set(plan.operators)\n",
        ("same_steps::test_a_step_is_none_where_another_branch_reads_what_comes_before_it",),
    ),
    Plant(
        "a_decision_and_its_effect_are_two_edits",
        "live_control",
        "    commit(runner.store.history, [*follows, note], [unmoved], token=runner.writer.token)\n",
        """    for each in (*follows, note):
        commit(runner.store.history, [each], [unmoved], token=runner.writer.token)
""",
        ("live_control::test_through_every_crash_exactly_one_decision_is_in_the_log_with_what_follows[tag]",),
    ),
    Plant(
        "a_run_in_the_log_is_repeated",
        "live_control",
        "    if recorded is not None:\n",
        "    if recorded is not None and recorded.note.kind == 'update':\n",
        ("live_control::test_a_run_that_is_in_the_log_is_not_repeated",),
    ),
    Plant(
        "a_slot_sees_the_keys_of_all",
        "live_operation",
        "self._view(table).scan(groups=self._groups, columns=columns)",
        "self._view(table).scan(columns=columns)",
        ("live_control::test_each_slot_is_looked_at_once_and_together_they_see_all_keys[None-3]",),
    ),
)
