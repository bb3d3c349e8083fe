"""The coordinator: membership, tensor numbers and placement, barriers, and the orderly end of a job."""
