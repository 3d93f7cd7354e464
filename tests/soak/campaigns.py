"""All faults that the soak tries, in the order of the table."""

from tests.soak import checkpoints, damage, hostile, kits, large, lying, racing, sparks, staged
from tests.soak.campaign import Campaign

ALL = (
    Campaign(
        "store_bit_flip",
        "one to three bits of any part of any file: envelope, edit, manifest, footer, index, filter, chunk",
        damage.flip,
        weight=2,
    ),
    Campaign("store_file_replaced", "a file cut, longer, gone, swapped, of another store, or an older one", damage.replace),
    Campaign("open_file_changed", "a file changes after the process has verified and mapped it", damage.change_open_file),
    Campaign(
        "staged_output",
        "staged files damaged between the commit and the publishing, for each sink",
        staged.damage_before_publishing,
    ),
    Campaign("staged_between_operators", "rows damaged that one operator staged for the next", staged.damage_between_operators),
    Campaign("sink_failure", "publishing fails before, half way or after, and is retried or taken over", staged.fail_to_publish),
    Campaign(
        "lying_blobs",
        "lost acknowledgements, timeouts, duplicate and late requests, throttling, at any operation",
        lying.lie,
        weight=2,
    ),
    Campaign("full_disk", "no space at any byte of any write, again and again, and space returns", lying.fill_disk),
    Campaign("clock_skew", "clocks that are days apart and jump", lying.skew_clocks),
    Campaign(
        "paused_process", "a process stands still at any operation until its lease is over and others went on", racing.pause
    ),
    Campaign("driver_superseded", "another driver takes the lease at any step of an epoch", kits.take_over),
    Campaign("driver_crash", "a driver in the kit dies at one to four of its steps", kits.crash, weight=2),
    Campaign("racing_actors", "simulated schedules of writers, compactors, collectors and readers, some crash", racing.simulate),
    Campaign("racing_threads", "eight writers fight for the lease beside compactions and collections", racing.race_threads),
    Campaign("racing_processes", "processes on one folder write, fight for the lease, compact, collect", racing.race_processes),
    Campaign("random_histories", "random histories of a store beside dictionaries", racing.model, weight=2),
    Campaign(
        "hostile_folder", "names that climb, links, pipes, sockets, records that lie under valid checksums", hostile.open_folder
    ),
    Campaign(
        "gigabytes",
        "tables, key groups and keys larger than an Arrow array, through all that touches them, in soaks of half an hour or more",
        large.gigabytes,
        limit_s=900,
        least_minutes=30,
    ),
    Campaign("checkpoint_files", "files of Spark's checkpoint damaged, missing, or older ones", checkpoints.damage),
    Campaign(
        "spark_checkpoint",
        "the same between two runs of a query on Spark",
        sparks.damage_checkpoint,
        weight=3,
        limit_s=180,
    ),
    Campaign("spark_worker_killed", "Spark tasks killed by SIGKILL or failing", sparks.kill_worker, weight=4, limit_s=300),
    Campaign("spark_driver_killed", "Spark drivers killed by SIGKILL in an epoch", sparks.kill_driver, weight=6, limit_s=400),
)
CAMPAIGNS = {campaign.name: campaign for campaign in ALL}
