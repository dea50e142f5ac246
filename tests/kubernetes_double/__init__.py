"""A Kubernetes cluster for tests: an API server and a node whose pods are containers of a Docker engine."""
