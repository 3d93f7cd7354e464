"""Writes a stream of Nexmark events as Parquet files, one per epoch.

python -m examples.nexmark.generate --events 1000000 --out events [--per-file 100000] [--rate 10000] [--disorder-ms 4000] ...
"""

import argparse
from dataclasses import fields
from pathlib import Path

from examples.nexmark.generator import Nexmark, write_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the output folder")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--per-file", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first event; file numbers continue from it")
    for field in fields(Nexmark):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=f"{field.default}")
    arguments = vars(parser.parse_args())
    out, events, per_file, first = (arguments.pop(name) for name in ("out", "events", "per_file", "first"))
    tables = Nexmark(**arguments).slices(events, per_file, first)
    paths = write_files(tables, out, first=first // per_file)
    print(f"{events:,} events in {len(paths)} files in {out}")


if __name__ == "__main__":
    main()
