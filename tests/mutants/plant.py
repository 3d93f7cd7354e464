"""A planted bug: a text in one file that is replaced by another, and the tests that must find it."""

from dataclasses import dataclass

FILES = {
    "batch_entries": "floodplain/runtime/checkpoint/damage.py",
    "channel": "floodplain/workers/channel.py",
    "cache_files": "floodplain/tiers/cache/files.py",
    "cached_run": "floodplain/store/run/cached_run.py",
    "chunks": "floodplain/store/run/chunks.py",
    "commands": "floodplain/workers/commands.py",
    "commit": "floodplain/versions/log/commit.py",
    "compactor": "floodplain/store/compaction/compactor.py",
    "coordinator": "floodplain/workers/coordinator.py",
    "create": "floodplain/tiers/create.py",
    "delta_sink": "floodplain/sinks/delta.py",
    "directory": "floodplain/tiers/directory.py",
    "epoch": "floodplain/store/write/epoch.py",
    "epochs": "floodplain/runtime/epoch_runner.py",
    "fences": "floodplain/versions/log/fences.py",
    "file_sink": "floodplain/sinks/files.py",
    "follow": "floodplain/versions/log/follow.py",
    "footer": "floodplain/store/run/footer.py",
    "frame": "floodplain/versions/records/frame.py",
    "garbage": "floodplain/versions/retention/garbage.py",
    "history": "floodplain/versions/log/history.py",
    "inherited": "floodplain/runtime/compatibility/inherited_output.py",
    "inline_output": "floodplain/versions/log/inline_output.py",
    "keyed": "floodplain/operators/kernel/task.py",
    "lease": "floodplain/versions/log/lease.py",
    "live_control": "floodplain/runtime/live/control.py",
    "live_operation": "floodplain/runtime/live/operation.py",
    "live_update": "floodplain/runtime/live/update.py",
    "lookup": "floodplain/store/read/lookup.py",
    "misses": "floodplain/store/read/misses.py",
    "per_key": "floodplain/operators/kernel/per_key.py",
    "read_ahead": "floodplain/store/run/read_ahead.py",
    "manifest": "floodplain/versions/records/manifest.py",
    "manifest_delta": "floodplain/versions/records/manifest_delta.py",
    "manifest_feed": "floodplain/runtime/manifest_feed.py",
    "merge": "floodplain/store/rows/resolve.py",
    "newest": "floodplain/store/read/newest_fast_path.py",
    "objects": "floodplain/tiers/objects.py",
    "piece_reader": "floodplain/workers/piece_reader.py",
    "pieces": "floodplain/workers/pieces.py",
    "pins": "floodplain/versions/retention/pins.py",
    "point_get": "floodplain/store/read/point_get.py",
    "policy": "floodplain/store/compaction/policy.py",
    "publisher": "floodplain/runtime/publisher.py",
    "run_reader": "floodplain/store/run/reader.py",
    "readers": "floodplain/store/run/open_runs.py",
    "renewal": "floodplain/versions/log/renewal.py",
    "replay": "floodplain/versions/log/replay.py",
    "requests": "floodplain/workers/requests.py",
    "requirements": "floodplain/versions/log/requirements.py",
    "resources": "floodplain/runtime/resources.py",
    "retention": "floodplain/versions/retention/policy.py",
    "same_steps": "floodplain/plan/same_steps.py",
    "savings": "floodplain/cost/savings.py",
    "scan": "floodplain/store/read/scan.py",
    "sources": "floodplain/versions/records/sources.py",
    "spark_checkpoint": "floodplain/runtime/checkpoint/spark_checkpoint.py",
    "spark_files": "floodplain/runtime/checkpoint/files.py",
    "staging": "floodplain/runtime/staging.py",
    "store": "floodplain/store/store.py",
    "task": "floodplain/runtime/task.py",
    "timers": "floodplain/state/timers.py",
    "vouched": "floodplain/versions/records/vouched.py",
    "worker": "floodplain/workers/worker.py",
    "worker_kit": "floodplain/workers/kit.py",
}
"""Where each file is: the one place to change when a module moves."""

TESTS = {
    "hidden_misses": "tests/operators/kernel/test_hidden_misses.py",
    "read_ahead": "tests/store/run/test_read_ahead.py",
    "cached_runs": "tests/store/run/test_cached_run.py",
    "changed_on_disk": "tests/store/test_changed_on_disk.py",
    "collect": "tests/versions/retention/test_garbage.py",
    "commits": "tests/versions/log/test_commit.py",
    "crashes": "tests/testing/test_crashes.py",
    "creates": "tests/tiers/test_create.py",
    "damaged_log": "tests/versions/test_damage.py",
    "damaged_runs": "tests/store/test_damage.py",
    "delta": "tests/sinks/test_delta.py",
    "directories": "tests/tiers/test_directory.py",
    "fenced": "tests/versions/log/test_fences.py",
    "fold": "tests/versions/records/test_fold.py",
    "folds": "tests/store/rows/test_merge_functions.py",
    "frames": "tests/versions/records/test_frame.py",
    "hostile": "tests/store/test_hostile.py",
    "inheriting": "tests/runtime/compatibility/test_inherited.py",
    "kit": "tests/testing/test_pipeline_kit.py",
    "leases": "tests/versions/log/test_lease.py",
    "live_control": "tests/runtime/live/test_control.py",
    "live_update": "tests/runtime/live/test_update.py",
    "lookups": "tests/store/read/test_lookup.py",
    "manifest_deltas": "tests/versions/records/test_manifest_delta.py",
    "manifest_feeds": "tests/runtime/test_manifest_feed.py",
    "merges": "tests/store/rows/test_resolve.py",
    "newest_rows": "tests/store/read/test_newest_fast_path.py",
    "objects": "tests/tiers/test_objects.py",
    "pinned": "tests/versions/retention/test_pins.py",
    "point_gets": "tests/store/read/test_point_get.py",
    "policies": "tests/store/compaction/test_policy.py",
    "races": "tests/store/test_races.py",
    "recovery": "tests/versions/log/test_recovery.py",
    "renewals": "tests/versions/log/test_renewal.py",
    "requests_asked": "tests/runtime/test_requests.py",
    "retained": "tests/versions/retention/test_policy.py",
    "same_steps": "tests/plan/test_same_steps.py",
    "savings": "tests/cost/test_savings.py",
    "sinks": "tests/sinks/test_registry.py",
    "sinks_vouched": "tests/sinks/test_vouched_output.py",
    "spark_damage": "tests/runtime/checkpoint/test_damage.py",
    "spark_place": "tests/runtime/checkpoint/test_spark_checkpoint.py",
    "staged": "tests/runtime/test_staged_damage.py",
    "takeovers": "tests/runtime/test_lease_takeover.py",
    "tier_use": "tests/runtime/test_tier_use.py",
    "timed": "tests/operators/kernel/test_timers.py",
    "ttl": "tests/store/test_ttl.py",
    "watermarked": "tests/runtime/test_watermark_clock.py",
    "workers_channel": "tests/workers/test_channel.py",
    "workers_coordinator": "tests/workers/test_coordinator.py",
    "workers_engine": "tests/workers/test_engine.py",
    "workers_faults": "tests/workers/test_faults.py",
    "workers_pieces": "tests/workers/test_pieces.py",
    "workers_reader": "tests/workers/test_piece_reader.py",
    "workers_worker": "tests/workers/test_worker.py",
}
"""Where each file of tests is."""


@dataclass(frozen=True, slots=True)
class Plant:
    """One bug. ``old`` occurs exactly once in the file."""

    name: str
    file: str
    """Of ``FILES``."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Each must fail: a file of ``TESTS``, ``::`` and the name of a test, with a parameter or without."""

    @property
    def path(self) -> str:
        return FILES[self.file]

    @property
    def node_ids(self) -> list[str]:
        """The tests as pytest names them."""
        return [f"{TESTS[file]}::{test}" for file, _, test in (test.partition("::") for test in self.tests)]

    def planted(self, text: str) -> str:
        """The content of its file with the bug. Raises ``Stale`` unless there is just one place for it."""
        found = text.count(self.old)
        if found != 1:
            raise Stale(f"{self.name}: {self.path} has its text {found} times, not once: write the plant anew for what is there")
        return text.replace(self.old, self.new)


class Stale(Exception):
    """The file has changed since the bug was written."""
