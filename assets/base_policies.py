"""``base_policies``: local base models, made from a recipe and demonstrations. No weights are shipped."""

import asyncio

import dagster as dg
from pydantic import Field

from assets.partitions import BASE_POLICIES
from assets.progress import log_progress
from assets.stamps import OWNERS, Facts, files_fact, materialized
from domain.errors import ConfigurationError, NotFoundError
from domain.lifecycle.mini_dialogue import BASH
from domain.ports import Progress
from domain.records.model import BasePolicy
from domain.service.platform import Platform
from domain.service.publish import make_base_policy
from resources.documents import recipe
from resources.synth import SynthResource


class BasePolicyConfig(dg.Config):
    """Where a base policy comes from."""

    recipe: str = Field(
        default="",
        description="Path of the recipe (JSON). Empty: read the policy that `synth policy make` has made before.",
    )


@dg.asset(partitions_def=BASE_POLICIES, group_name="catalog", owners=OWNERS, kinds={"pytorch"}, code_version="1")
def base_policies(
    context: dg.AssetExecutionContext, config: BasePolicyConfig, synth: SynthResource
) -> dg.MaterializeResult[None]:
    """A base model in its native format: tokenizer and weights made from demonstrations, by digest of the recipe."""
    platform = synth.platform()
    if config.recipe:
        made = asyncio.run(_made(platform, config.recipe, log_progress(context.log)))
        if made.recipe_digest != context.partition_key:
            raise ConfigurationError(f"recipe: {config.recipe} is {made.recipe_digest}, not this partition")
    policy = _known(platform, context.partition_key)
    return materialized(_facts(policy), dg.DataVersion(policy.digest))


async def _made(platform: Platform, path: str, progress: Progress) -> BasePolicy:
    found, demonstrations = recipe(path)
    return await make_base_policy(platform, found, demonstrations, (BASH,), progress)


def _known(platform: Platform, recipe_digest: str) -> BasePolicy:
    with platform.ledger.snapshot() as tx:
        for policy in tx.catalog.base_policies():
            if policy.recipe_digest == recipe_digest:
                return policy
    raise NotFoundError(f"no base policy of recipe {recipe_digest[:12]}", hint="say `synth policy make @RECIPE`")


def _facts(policy: BasePolicy) -> Facts:
    numbers = {key: value for key, value in policy.metrics.items() if isinstance(value, int | float)}
    return {
        "model": f"base:{policy.name}",
        "family": policy.family,
        "n_parameters": policy.n_parameters,
        "context_tokens": policy.context_tokens,
        "files_sha256": policy.digest,
        "recipe_sha256": policy.recipe_digest,
        "files": files_fact(policy.files),
        **numbers,
    }
