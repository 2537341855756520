"""What we write to a cluster: pure functions from a spec to documents (plain mappings). Nothing here talks to one."""
