"""Namespaces, workloads and pods in the mesh, as values."""
