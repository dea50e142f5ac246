"""Task sets, profiles and plans a newcomer runs; see README.md beside this file."""
