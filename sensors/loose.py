"""Dagster's decorators as untyped functions: their own annotations are not complete enough to check against."""

from typing import Any

import dagster as dg

loose: Any = dg
