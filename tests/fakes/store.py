"""A store in memory."""

from domain.errors import NotFoundError
from domain.records.canonical import digest_bytes
from domain.records.task import ObjectRef


class MemoryStore:
    """Content-addressed bytes in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, data: bytes) -> ObjectRef:
        """Keep ``data`` and return its name."""
        digest = digest_bytes(data)
        self.objects.setdefault(digest, bytes(data))
        return ObjectRef(digest=digest, size_bytes=len(data))

    def get(self, ref: ObjectRef) -> bytes:
        """Return the bytes. Raises NotFoundError."""
        if ref.digest not in self.objects:
            message = f"object {ref.digest} is not in memory"
            raise NotFoundError(message)
        return self.objects[ref.digest]

    def has(self, digest: str) -> bool:
        """Say whether the object is here."""
        return digest in self.objects

    def location(self, ref: ObjectRef) -> str:
        """Return a URI."""
        return f"memory:{ref.digest}"
