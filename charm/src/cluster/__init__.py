"""The Kubernetes API, and the objects that the charm keeps in it."""
