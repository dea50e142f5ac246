"""The key spaces of the graph. Units share one, so that every edge of the canonical chain is the identity."""

import dagster as dg

UNITS = dg.DynamicPartitionsDefinition(name="unit")
"""``evl-<ulid>.s000``, ``uns-<ulid>.s000``, ``trn-<ulid>.b00012``."""

TASK_SETS = dg.DynamicPartitionsDefinition(name="task_set")
"""``<team>.<name>.v<version>``."""

BASE_POLICIES = dg.DynamicPartitionsDefinition(name="base_policy")
"""Recipe digests."""

EXPERIMENTS = dg.DynamicPartitionsDefinition(name="experiment")
"""Experiments that have a report."""

ASSESSORS = dg.DynamicPartitionsDefinition(name="assessor")
"""Regrades: ``rgr-<ulid>``."""

REGRADED_UNITS = dg.MultiPartitionsDefinition({"assessor": ASSESSORS, "unit": UNITS})
