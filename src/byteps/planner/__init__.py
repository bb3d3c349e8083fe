"""What a cluster would gain: training steps on a virtual clock with the real scheduler, and their bounds."""
