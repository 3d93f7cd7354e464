"""The files of sources in Spark's checkpoint, as recorded in the state: as text, or concatenated into objects."""

from collections.abc import Callable, Iterator

from floodplain.errors import BadInput
from floodplain.runtime.checkpoint.files import SOURCES, File, content_lines, differs
from floodplain.tiers import paths
from floodplain.tiers.blobs import Blobs
from floodplain.versions.records import seen
from floodplain.versions.records.edit import SeenRef, SourcePosition
from floodplain.versions.records.seen import SeenEntry
from floodplain.versions.records.vouched import FileSum

Load = Callable[[SeenRef], tuple[SeenEntry, ...]]


def no_objects(ref: SeenRef) -> tuple[SeenEntry, ...]:
    """For positions that have none."""
    raise BadInput(f"{ref.object} is needed, and no store is given to read it from")


class SeenReader:
    """Reads objects of seen files, and caches those that each batch reads again."""

    def __init__(self, blobs: Blobs, store: str) -> None:
        self._blobs, self._store = blobs, store
        self._held: dict[str, tuple[SeenEntry, ...]] = {}

    def __call__(self, ref: SeenRef) -> tuple[SeenEntry, ...]:
        return self._held.get(ref.object) or seen.load(self._blobs, self._store, ref)

    def hold(self, refs: list[SeenRef]) -> None:
        """Cache these objects and no others."""
        self._held = {ref.object: self(ref) for ref in refs}


class Known:
    """What the state says of the files of sources at one position. Objects are read only where a text is needed, or where
    they have entries that no newer file has replaced."""

    def __init__(self, position: SourcePosition, load: Load = no_objects) -> None:
        self._position, self._load = position, load
        self._texts = {name: text for name, text in position.sources.items() if name.startswith(SOURCES)}
        self._newest = self._replacing()
        open_refs = [ref for ref in position.seen if ref.last > self._replaced_up_to(ref.source)]
        if isinstance(load, SeenReader):
            load.hold(open_refs)
        self._sealed = {f"{ref.source}/{entry.number}": entry.text for ref in open_refs for entry in load(ref)}
        self.names = frozenset(self._counting())
        """Of the files that must be there, unless newer ones have replaced them since."""

    def _replacing(self) -> dict[str, tuple[int, str]]:
        """Source → number and name of the newest file that replaces all entries up to it."""
        newest: dict[str, tuple[int, str]] = {}
        for name in (*self._texts, *self._position.compacts):
            entry = paths.source_entry(name)
            if entry is not None and entry[2]:
                newest[entry[0]] = max(newest.get(entry[0], (-1, "")), (entry[1], name))
        return newest

    def _replaced_up_to(self, source: str) -> int:
        return self._newest.get(source, (-1, ""))[0]

    def _counting(self) -> Iterator[str]:
        for name in (*self._texts, *self._sealed):
            entry = paths.source_entry(name)
            if entry is None or entry[1] > self._replaced_up_to(entry[0]):
                yield name
        yield from (name for _, name in self._newest.values())

    @property
    def sources(self) -> set[str]:
        """Their folders."""
        return {name.rpartition("/")[0] for name in self.names}

    def within(self, source: str) -> list[str]:
        """The files of one source, in order."""
        names = [name for name in self.names if name.rpartition("/")[0] == source]
        return sorted(names, key=lambda name: paths.source_entry(name) or ("", 0, False))

    def text(self, name: str) -> str:
        """Requires: it is one of ``names``. Raises ``Corrupt`` if an object that it is to be read from is damaged."""
        if name in self._texts or name in self._sealed:
            return self._texts.get(name) or self._sealed.get(name) or ""
        source, number, _ = paths.source_entry(name) or ("", 0, False)
        entries = [entry for entry in self._entries(source) if entry.number <= number]
        text = seen.header(entries[-1].text) + seen.content_of(entries) if entries else ""
        if FileSum.of(text.encode()) != self._position.compacts[name]:
            raise BadInput(
                f"what the state has of {name} in Spark's checkpoint does not make up that file, which had "
                f"{self._position.compacts[name]}: run floodplain verify on the state, and roll it back to an epoch that is good"
            )
        return text

    def differs(self, name: str, file: File) -> str | None:
        """What is wrong with a file that must be as the state has it; None if nothing is."""
        vouched = self._position.compacts.get(name)
        if vouched is not None and file.data is not None and FileSum.of(file.data) == vouched:
            return None if file.vouched is not False else differs(file, file.text)
        return differs(file, self.text(name))

    def lines(self, source: str) -> set[str]:
        """All that the source had read."""
        return set(content_lines(entry.text for entry in self._entries(source)))

    def own(self, source: str, text: str) -> str | None:
        """Of a new file that replaces all before it, what is new in it, as an entry of its own; None if it does not begin with
        all that is known, in order."""
        data = text.encode()
        at = len(seen.header(text).encode())
        refs = [(ref.first, ref.content) for ref in self._position.seen if ref.source == source]
        noted = [(entry.number, FileSum.of(seen.content(entry.text).encode())) for entry in self._noted(source)]
        for _, known in sorted([*refs, *noted], key=lambda pair: pair[0]):
            if FileSum.of(data[at : at + known.length]) != known:
                return None
            at += known.length
        return seen.header(text) + data[at:].decode()

    def _entries(self, source: str) -> list[SeenEntry]:
        """All, in order."""
        sealed = [entry for ref in self._position.seen if ref.source == source for entry in self._load(ref)]
        return sorted([*sealed, *self._noted(source)], key=lambda entry: entry.number)

    def _noted(self, source: str) -> Iterator[SeenEntry]:
        for name, text in self._texts.items():
            entry = paths.source_entry(name)
            if entry is not None and entry[0] == source:
                yield SeenEntry(entry[1], text, entry[2])
