"""Task sets in pages: written once, read a page at a time, so that their size is nobody's memory."""

from collections.abc import Iterable, Iterator, Sequence

from domain.errors import NotFoundError, TaskError
from domain.ports import Records
from domain.records.canonical import digest_of
from domain.records.names import Reference
from domain.records.task import ObjectRef, TaskClass, TaskEntry, TaskPage, TaskSet

PAGE_TASKS = 1000


class TaskSetWriter:
    """Takes tasks in order and makes the set of them."""

    def __init__(self, records: Records, reference: Reference) -> None:
        """Begin an empty set."""
        self._records, self._reference = records, reference
        self._names: set[str] = set()
        self._digests: list[str] = []
        self._families: set[str | None] = set()
        self._classes: dict[str, TaskClass] = {}
        self._page: list[TaskEntry] = []
        self._pages: list[ObjectRef] = []

    def add(self, entry: TaskEntry, needs: str) -> None:
        """Append a task; ``needs`` names what it asks for, and is the same for tasks that ask for the same.

        Raises:
            TaskError: the set has a task of this name.
        """
        if entry.name in self._names:
            raise TaskError(f"{self._reference}: several tasks are named {entry.name}", hint="give each its own name")
        self._names.add(entry.name)
        self._digests.append(entry.digest)
        self._families.add(entry.family)
        known = self._classes.get(needs)
        n_before, example = (0, entry) if known is None else (known.n_tasks, known.example)
        self._classes[needs] = TaskClass(n_tasks=n_before + 1, example=example)
        self._page.append(entry)
        if len(self._page) == PAGE_TASKS:
            self._turn()

    def close(self) -> TaskSet:
        """Return the set; its pages are kept."""
        if self._page:
            self._turn()
        return TaskSet(
            reference=self._reference,
            n_tasks=len(self._digests),
            n_families=len(self._families - {None}),
            digest=digest_of(self._digests),
            page_tasks=PAGE_TASKS,
            pages=tuple(self._pages),
            classes=tuple(self._classes.values()),
        )

    def _turn(self) -> None:
        self._pages.append(self._records.save(TaskPage(entries=tuple(self._page))))
        self._page = []


def entries_of(records: Records, task_set: TaskSet) -> Iterator[TaskEntry]:
    """Yield every task in order, with one page in memory."""
    for page in task_set.pages:
        yield from records.load(TaskPage, page).entries


def entries_at(records: Records, task_set: TaskSet, positions: Sequence[int]) -> tuple[TaskEntry, ...]:
    """Return the tasks at some positions, in their order; each page is read once and forgotten."""
    wanted: dict[int, list[int]] = {}
    for position in positions:
        wanted.setdefault(position // task_set.page_tasks, []).append(position)
    found: dict[int, TaskEntry] = {}
    for number, members in sorted(wanted.items()):
        page = records.load(TaskPage, task_set.pages[number]).entries
        found |= {position: page[position % task_set.page_tasks] for position in members}
    return tuple(found[position] for position in positions)


def entries_with(records: Records, task_set: TaskSet, digests: Iterable[str]) -> dict[str, TaskEntry]:
    """Return tasks by digest; pages are read until all are found.

    Raises:
        NotFoundError: the set has no such task.
    """
    missing = set(digests)
    found: dict[str, TaskEntry] = {}
    for page in task_set.pages:
        if not missing:
            break
        for entry in records.load(TaskPage, page).entries:
            if entry.digest in missing:
                found[entry.digest] = entry
                missing.discard(entry.digest)
    if missing:
        raise NotFoundError(f"{task_set.reference} has no task {min(missing)[:12]}")
    return found
