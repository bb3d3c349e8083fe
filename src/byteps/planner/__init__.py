"""What a cluster would gain: training steps simulated on a virtual clock with the real scheduler, and their bounds."""
