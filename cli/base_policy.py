"""Making a base policy from a recipe document."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.ports import Progress
    from domain.records.model import BasePolicy
    from domain.service.platform import Platform


def make(platform: "Platform", text: str, progress: "Progress") -> "BasePolicy":
    """Make the base policy of ``@FILE``, or return the one that was made from the same recipe before.

    Raises:
        ConfigurationError: naming file and field.
        ConflictError: the name holds a policy of another recipe.
    """
    from adapters.inputs.documents import demonstrations_path, read_demonstrations, read_recipe
    from cli.submission import document
    from domain.lifecycle.mini_dialogue import BASH
    from domain.service.publish import make_base_policy

    path = document(text, option="recipe", example="examples/base-policy.json")
    recipe = read_recipe(path)
    demonstrations = read_demonstrations(demonstrations_path(path, recipe))
    return asyncio.run(make_base_policy(platform, recipe, demonstrations, (BASH,), progress))
