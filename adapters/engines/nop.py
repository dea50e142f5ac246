"""An engine that does nothing: the floor that every verifier must hold below 1, and the platform's own overhead."""

from domain.errors import ConfigurationError
from domain.ports import Launch, ModelBinding
from domain.records.profile import Profile
from domain.records.task import Task


class NopEngine:
    """Uploads nothing and runs nothing."""

    @property
    def name(self) -> str:
        """``nop``."""
        return "nop"

    @property
    def needs_model(self) -> bool:
        """Never."""
        return False

    def check(self, profile: Profile) -> None:
        """Refuse what would have no effect.

        Raises:
            ConfigurationError: naming the field.
        """
        refuse_unused(profile, self.name)

    def launch(self, profile: Profile, task: Task, archive: bytes, binding: ModelBinding | None) -> Launch:
        """Return an empty launch."""
        del profile, task, archive, binding
        return Launch()


def refuse_unused(profile: Profile, engine: str) -> None:
    """Refuse a model, arguments and settings for an engine that has no use for them.

    Raises:
        ConfigurationError: naming the field.
    """
    unused = {"model": profile.model, "arguments": profile.arguments, "settings": profile.settings}
    for field, value in unused.items():
        if value:
            raise ConfigurationError(f"profile {profile.name!r}: {field}: engine {engine} takes none", hint="remove it")
