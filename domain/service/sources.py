"""Where documents were written, so that what is wrong with one is told by the name of its file."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from domain.errors import SynthError


@contextmanager
def written_in(files: Mapping[str, str]) -> Generator[None]:
    """Name the file instead of the document in errors of the block: ``agent.json: engine: no engine 'minni'``.

    Args:
        files: what messages call a document (``plan``, ``profile 'x'``) -> the file it was read from; empty: none.

    Raises:
        SynthError: of the class that was raised.
    """
    try:
        yield
    except SynthError as error:
        for document, file in files.items():
            if file and error.message.startswith(f"{document}: "):
                message = f"{file}{error.message.removeprefix(document)}"
                raise type(error)(message, hint=error.hint) from error
        raise
