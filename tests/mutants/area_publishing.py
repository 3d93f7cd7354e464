"""Bugs by which output is published too early, too late, twice, not at all, or by a driver that may not."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "published_without_the_lease",
        "publisher",
        """        head = self.store.head
        RequireLease(self.writer.token).check(head)
        if max(head.published, self._published) >= head.epoch:
""",
        """        head = self.store.head
        if max(head.published, self._published) >= head.epoch:
""",
        ("crashes::test_a_driver_that_is_superseded_in_its_commit_publishes_nothing",),
    ),
    Plant(
        "published_before_the_commit",
        "epochs",
        "        epoch.commit(\n            states,\n",
        """        for outlet in self.bound.plan.outlets:
            named = sorted(file.name for file in run.files(outlet.staged_as))
            outlet.sink.publish(epoch.number, named, self.store.history.blobs, self.bound.schema_of(outlet))
        self.publisher._published = epoch.number
        epoch.commit(
            states,
""",
        ("crashes::test_no_crash_loses_or_repeats_anything[counting-objects]",),
    ),
    Plant(
        "published_only_with_the_next_epoch",
        "epochs",
        """        self.bound.engine.end_epoch()
        self.publisher.publish_committed(inline)
""",
        """        self.bound.engine.end_epoch()
""",
        ("crashes::test_no_crash_loses_or_repeats_anything[echoing-objects]",),
    ),
    Plant(
        "output_of_another_edit_is_taken_for_that_of_the_epoch",
        "inline_output",
        "    if checksum(data) != mark.chain:\n",
        "    if len(checksum(data)) != len(mark.chain):\n",
        ("requests_asked::test_output_in_a_damaged_edit_is_not_published",),
    ),
    Plant(
        "not_published_before_the_next_epoch",
        "publisher",
        "if max(self.store.head.published, self._published) < self.store.head.epoch:",
        "if max(self.store.head.published, self._published) > self.store.head.epoch:",
        ("crashes::test_what_a_sink_refuses_is_published_before_the_next_epoch[waiting]",),
    ),
    Plant(
        "noted_as_published_before_it_is",
        "publisher",
        """        named, blobs = unpublished(head, self.staged_as), vouched(head, self.store.history.blobs, inline)
""",
        """        self._published = head.epoch
        named, blobs = unpublished(head, self.staged_as), vouched(head, self.store.history.blobs, inline)
""",
        ("crashes::test_what_a_sink_refuses_is_published_before_the_next_epoch[counting]",),
    ),
    Plant(
        "what_a_dead_driver_left_is_swept_unpublished",
        "epochs",
        """        self.publisher.publish()
        self.publisher.record()
        migrate(self.writer, migration)
""",
        """        self.publisher.record()
        migrate(self.writer, migration)
""",
        ("kit::test_a_start_publishes_what_was_committed_also_if_its_batch_is_not_offered_again",),
    ),
    Plant(
        "unpublished_output_is_deleted_at_the_end",
        "publisher",
        "        if head.published >= head.epoch:\n",
        "        if head.published <= head.epoch:\n",
        ("kit::test_output_that_a_sink_refused_waits_for_the_next_driver",),
    ),
    Plant(
        "not_published_before_time_moves_on",
        "epochs",
        """        self.publisher.publish_pending()
        at = self.moment(timestamp_ms)
        published,""",
        """        at = self.moment(timestamp_ms)
        published,""",
        ("kit::test_output_that_a_sink_refused_is_published_before_a_heartbeat_moves_time",),
    ),
    Plant(
        "output_of_an_unknown_step_is_passed_over",
        "inherited",
        """            raise _left(head, paths.output_of(file), "this pipeline does not have it")
""",
        """            continue
""",
        ("inheriting::test_a_pipeline_that_is_refused_has_changed_nothing",),
    ),
    Plant(
        "files_of_a_later_epoch_are_taken_for_repeated_ones",
        "file_sink",
        "if newest > committed:",
        "if newest > committed + 1:",
        ("sinks::test_states_keep_apart_and_one_that_was_rolled_back_is_refused",),
    ),
    Plant(
        "a_repeated_epoch_is_committed_to_delta_again",
        "delta_sink",
        "if (table.transaction_version(self._app) or 0) >= epoch:",
        "if (table.transaction_version(self._app) or 0) > epoch:",
        ("delta::test_an_epoch_is_one_commit_and_its_repetition_none",),
    ),
    Plant(
        "a_delta_table_that_is_ahead_is_taken_for_behind",
        "delta_sink",
        "if newest > committed:",
        "if newest > committed + 1:",
        ("delta::test_a_state_that_was_rolled_back_is_refused",),
    ),
)
