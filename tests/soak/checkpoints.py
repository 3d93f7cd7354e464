"""Spark's checkpoint damaged or put back in part, without Spark: the state decides what is gone on from, or it is refused."""

import shutil
from pathlib import Path

from floodplain.runtime.checkpoint.files import write
from floodplain.runtime.checkpoint.spark_checkpoint import agree
from tests.runtime.checkpoint.test_damage import DAMAGES, SCENES, WATERMARK_MS, Scene, check_sound, load
from tests.soak.outcome import Trial


def damage(trial: Trial) -> None:
    """One or two files of a checkpoint, with their checksums or without."""
    scene = SCENES[trial.rng.choice(sorted(SCENES))]
    folder = scene.laid_out(trial.folder / "checkpoint")
    for name in trial.rng.sample(sorted(scene.files), trial.rng.choice((1, 1, 2))):
        if trial.faulty and (folder / name).exists():
            trial.note(f"{name}: {_damaged(trial, scene, folder, name)}")
    with trial.may_refuse(str(folder)):
        agree(folder, scene.committed, WATERMARK_MS, load=load)
        check_sound(folder, scene)
        trial.require(True, "a sound checkpoint")


def _damaged(trial: Trial, scene: Scene, folder: Path, name: str) -> str:
    """Does it; returns what was done."""
    path, rng = folder / name, trial.rng
    keeps_checksum = rng.random() < 0.5
    others = [other for other in scene.files if other != name and other.split("/")[0] == name.split("/")[0]]
    others = others if _counts(scene, name) else []
    how = rng.choice(["random bit", "random cut", *DAMAGES, *(["another file"] * 4 if others else [])])
    data = path.read_bytes()
    if how == "another file":
        other = rng.choice(others)
        write(path, scene.files[other]) if keeps_checksum else path.write_text(scene.files[other])
        how = f"the text of {other}"
    elif how == "random bit":
        bit = rng.randrange(8 * len(data))
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
    elif how == "random cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif (changed := DAMAGES[how](data)) is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    if not keeps_checksum:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return f"{how}, {'with' if keeps_checksum else 'without'} its checksum"


def _counts(scene: Scene, name: str) -> bool:
    """Whether the text of a file decides what is read on. Offsets of batches before the last one in the state do not: all that
    Spark could do with them is to run that last batch again, which is known by its own offsets and not processed."""
    log, _, batch = name.partition("/")
    return log == "sources" or (log == "offsets" and int(batch) >= scene.last)


def damage_files(trial: Trial, folder: Path) -> None:
    """The same, to a checkpoint that Spark wrote: a random file of it, or a part of it as it was before."""
    rng = trial.rng
    files = sorted(path for path in folder.rglob("[!.]*") if path.is_file())
    path = rng.choice(files)
    data, how = path.read_bytes(), rng.choice(["bit", "cut", "gone", "older", "all gone"])
    trial.note(f"{path.relative_to(folder)}: {how}")
    if how == "all gone":
        shutil.rmtree(folder)
        return
    if rng.random() < 0.7:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif how == "bit":
        bit = rng.randrange(8 * len(data))
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
    else:
        older = [other for other in files if other.parent == path.parent and other != path]
        path.write_bytes(rng.choice(older).read_bytes() if older else b"")
