"""A Kubernetes cluster of one node for tests: the API in this process, each pod a container of a Docker engine."""
