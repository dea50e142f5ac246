"""The platform a command talks to, opened when it is needed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.service.platform import Platform
    from resources.settings import Settings


_named: list[Path] = []


def named_home() -> Path | None:
    """Return the state directory that was named on the command line."""
    return _named[0] if _named else None


def use_home(home: Path | None) -> None:
    """Make ``home`` the state directory of this process and of those it starts; None leaves SYNTH_HOME as it is."""
    if home is not None:
        _named[:] = [home]
        os.environ["SYNTH_HOME"] = str(home)  # noqa: TID251 - the process entry point


def use_memory_boxes() -> None:
    """Put the boxes of this process and of those it starts into memory, unless SYNTH_BOXES says where they go."""
    chosen = settings().memory_boxes
    if chosen is not None and not os.environ.get("SYNTH_BOXES"):  # noqa: TID251 - the process entry point
        os.environ["SYNTH_BOXES"] = str(chosen)  # noqa: TID251 - the process entry point


def settings() -> "Settings":
    """Return the settings of this process's environment."""
    from resources.wiring import settings_from_environment

    return settings_from_environment()


def platform() -> "Platform":
    """Return the platform of ``SYNTH_HOME``; its directory and ledger are made at first use."""
    from resources.wiring import connect

    return connect(settings())


def existing_platform() -> "Platform":
    """Return the platform of a ``SYNTH_HOME`` that is there; for commands that only make sense where something is.

    Raises:
        ConfigurationError: nothing was ever kept there; nothing was made.
    """
    from domain.errors import ConfigurationError

    where = settings()
    if not where.has_state:
        raise ConfigurationError(
            f"no state at {where.home}",
            hint="set SYNTH_HOME or --home to where it is; `synth up` and `synth task-set publish` begin one",
        )
    return platform()
