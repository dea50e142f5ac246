"""The platform a command talks to, opened when it is needed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.service.platform import Platform
    from resources.settings import Settings


def settings() -> "Settings":
    """Return the settings of this process's environment."""
    from resources.wiring import settings_from_environment

    return settings_from_environment()


def platform() -> "Platform":
    """Return the platform of ``SYNTH_HOME``; its directory and ledger are made at first use."""
    from resources.wiring import connect

    return connect(settings())
