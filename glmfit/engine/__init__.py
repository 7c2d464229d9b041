"""The engine of every convex fit: rows, independent fits, two products; steps that see all rows."""
