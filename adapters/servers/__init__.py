"""ASGI shells: proxy and model control."""
