"""The fake of the Family port under the name its contract suite looks for."""

from tests.fakes.scripted_family import ScriptedFamily

__all__ = ["ScriptedFamily"]
