"""All faults that the soak tries, in the order of the table."""

from tests.soak import checkpoints, damage, hostile, kits, large, lying, racing, sparks, staged
from tests.soak.campaign import Campaign

ALL = (
    Campaign(
        "store_bit_flip",
        "one to three bits flip in any part of any file: envelope, edit, manifest, footer, index, filter, chunk",
        damage.flip,
        weight=2,
    ),
    Campaign(
        "store_file_replaced",
        "a file is truncated, extended, deleted, swapped, or replaced by one of another store or by an older one",
        damage.replace,
    ),
    Campaign("open_file_changed", "a file changes after the process has verified and mapped it", damage.change_open_file),
    Campaign(
        "staged_output",
        "staged files are damaged between commit and publish, for each sink",
        staged.damage_before_publishing,
    ),
    Campaign(
        "staged_between_operators", "rows that one operator staged for the next are damaged", staged.damage_between_operators
    ),
    Campaign(
        "sink_failure",
        "publishing fails before, half way or after, and is retried or taken over by another driver",
        staged.fail_to_publish,
    ),
    Campaign(
        "lying_blobs",
        "lost acknowledgements, timeouts, duplicate and late requests, throttling, at any operation",
        lying.lie,
        weight=2,
    ),
    Campaign(
        "full_disk", "the disk is full at any byte of any write, again and again, and has space again later", lying.fill_disk
    ),
    Campaign("clock_skew", "clocks that are days apart and jump", lying.skew_clocks),
    Campaign(
        "paused_process",
        "a process is paused at any operation until its lease has expired and others have taken over",
        racing.pause,
    ),
    Campaign("driver_superseded", "another driver takes the lease at any step of an epoch", kits.take_over),
    Campaign("driver_crash", "a driver in the kit dies at one to four of its steps", kits.crash, weight=2),
    Campaign(
        "racing_actors",
        "simulated schedules of writers, compactors, garbage collectors and readers, some of which crash",
        racing.simulate,
    ),
    Campaign(
        "racing_threads", "eight writers compete for the lease during compactions and garbage collections", racing.race_threads
    ),
    Campaign(
        "racing_processes",
        "processes on one folder write, compete for the lease, compact and collect garbage",
        racing.race_processes,
    ),
    Campaign("random_histories", "random histories of a store, compared with dictionaries", racing.model, weight=2),
    Campaign(
        "hostile_folder", "paths with `..`, links, pipes, sockets, false records under valid checksums", hostile.open_folder
    ),
    Campaign(
        "gigabytes",
        "tables, key groups and keys larger than an Arrow array, in all operations on them, in soaks of half an hour or more",
        large.gigabytes,
        limit_s=900,
        least_minutes=30,
    ),
    Campaign(
        "checkpoint_files", "files of Spark's checkpoint are damaged, missing or replaced by older ones", checkpoints.damage
    ),
    Campaign(
        "spark_checkpoint",
        "the same between two runs of a query on Spark",
        sparks.damage_checkpoint,
        weight=3,
        limit_s=180,
    ),
    Campaign("spark_worker_killed", "Spark tasks are killed by SIGKILL or fail", sparks.kill_worker, weight=4, limit_s=300),
    Campaign(
        "spark_driver_killed", "Spark drivers are killed by SIGKILL during an epoch", sparks.kill_driver, weight=6, limit_s=400
    ),
)
CAMPAIGNS = {campaign.name: campaign for campaign in ALL}
