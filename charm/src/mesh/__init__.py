"""What is in the mesh: namespaces, workloads and pods, as values."""
