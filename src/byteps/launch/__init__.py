"""Starting jobs: on this machine, BytePS's way, and the commands that run one role."""
