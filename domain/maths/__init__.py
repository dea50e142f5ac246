"""Pure numerics: statistics, advantages, packing and objectives."""
