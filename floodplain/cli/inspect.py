"""`floodplain inspect`."""

from floodplain.cli.inspection import inspect_store
from floodplain.cli.options import AsJson, Imports, Location, StoreOptions, chosen_output, import_modules, opened, reported


def inspect(location: Location, option: StoreOptions = None, import_: Imports = None, as_json: AsJson = False) -> None:
    """Show the contents of a store: tables, runs, retained epochs, tags, lease, watermarks, sizes, the log.

    Reads the manifest and lists the objects; the state itself is not read, however large it is.
    """
    output = chosen_output(as_json)
    with reported(output):
        import_modules(import_)
        with opened(location, option) as store:
            output.inspection(inspect_store(location, store))
