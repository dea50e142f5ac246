"""The platform as a Dagster resource."""

import dagster as dg
from pydantic import Field

from domain.service.platform import Platform
from resources.settings import Settings
from resources.wiring import connect, settings_from_environment


class SynthResource(dg.ConfigurableResource[None]):
    """Gives assets and sensors the platform; one connection for each process and home."""

    home: str = Field(default="", description="State directory. Empty: SYNTH_HOME of the process, else .synth")

    def settings(self) -> Settings:
        """Return the settings of this process. Raises ConfigurationError."""
        return settings_from_environment(self.home or None)

    def platform(self) -> Platform:
        """Return the connected platform. Raises ConfigurationError, LedgerError."""
        return connect(self.settings())
