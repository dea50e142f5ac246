"""The ledger's migrations. Never edit one that was released: add the next."""
