"""The Kubernetes API, and the objects that the charm writes there."""
