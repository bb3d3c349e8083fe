"""Training emulated on hosts of its own: published layers that sleep instead of computing, and real links."""
