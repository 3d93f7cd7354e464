"""Bugs by which a writer goes on after another took its lease, or takes one that is held."""

from tests.mutants.plant import Plant

PLANTS = (
    Plant(
        "a_superseded_lease_passes",
        "requirements",
        "if lease.token != self.token:",
        "if lease.token < self.token:",
        ("commits::test_a_paused_writer_that_was_superseded_commits_nothing",),
    ),
    Plant(
        "a_released_lease_passes",
        "requirements",
        "if not lease.expires_ms:",
        "if lease.expires_ms < 0:",
        ("leases::test_release_lets_the_next_in_and_ends_the_writer",),
    ),
    Plant(
        "a_lease_ends_one_millisecond_late",
        "lease",
        "ended = head.lease.expires_ms <= now_ms or",
        "ended = head.lease.expires_ms < now_ms or",
        ("leases::test_another_owner_waits_until_the_lease_ends",),
    ),
    Plant(
        "a_holder_that_nobody_knows_is_taken_for_gone",
        "lease",
        "return lease.holder is not None and is_gone(lease.holder)",
        "return lease.holder is None or is_gone(lease.holder)",
        ("leases::test_another_owner_waits_until_the_lease_ends",),
    ),
    Plant(
        "a_clock_that_is_ahead_is_believed",
        "lease",
        "return max(min(by_clock_ms, lease.length_ms or history.settings.lease_ms), 0)",
        "return max(by_clock_ms, 0)",
        ("takeovers::test_a_dead_driver_whose_clock_was_ahead_is_waited_for_as_long_as_its_lease_was",),
    ),
    Plant(
        "an_epoch_is_committed_without_the_lease",
        "epoch",
        "manifest = commit(self._history, [*also, update, *behind], needed, token=ticket.token)",
        "manifest = commit(self._history, [*also, update, *behind], needed)",
        ("races::test_a_writer_that_was_paused_and_superseded_commits_nothing",),
    ),
    Plant(
        "requirements_are_checked_on_the_first_try_only",
        "commit",
        """        head = history.head
        for requirement in needed:
            requirement.check(head)
""",
        """        head = history.head
        for requirement in () if stuck else needed:
            requirement.check(head)
        needed = ()
""",
        ("commits::test_a_paused_writer_that_was_superseded_commits_nothing",),
    ),
    Plant(
        "an_edit_under_an_older_lease_is_folded",
        "manifest",
        "_require(edit.token in (0, lease.token),",
        "_require(edit.token <= lease.token,",
        ("fold::test_an_edit_under_an_older_lease_is_refused",),
    ),
    Plant(
        "a_token_is_used_again",
        "manifest",
        "_require(token == manifest.lease.token + 1,",
        "_require(token >= manifest.lease.token,",
        ("fold::test_an_update_that_does_not_fit_is_refused",),
    ),
    Plant(
        "who_renews_does_not_see_that_another_has_the_lease",
        "renewal",
        "if (aged or held.token != self._token) and self._wanted():",
        "if aged and self._wanted():",
        ("renewals::test_a_lease_that_another_has_and_renews_is_lost",),
    ),
    Plant(
        "who_was_superseded_still_clears_up_at_its_end",
        "publisher",
        """        head = self.store.history.refresh()
        RequireLease(self.writer.token).check(head)
        if head.published >= head.epoch:
""",
        """        head = self.store.history.refresh()
        if head.epoch >= head.published:
""",
        ("kit::test_a_driver_that_was_superseded_deletes_nothing_of_the_next_one",),
    ),
)
